# graft_layer(NAME DEPS ...): the library graft_NAME from src/NAME, and the test program NAME_test from
# tests/NAME, where these folders hold sources.

add_library(graft_flags INTERFACE)
target_compile_options(graft_flags INTERFACE -Wall -Wextra -Wpedantic -Werror -fno-math-errno
                       -ffp-contract=off
                       # GCC 12 reports overlaps in std::string's operator+ that cannot be (its bug 105651),
                       # and elements beyond a vector's single one where it inlines a move.
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-array-bounds>
                       # Without optimisation Clang warns of every `omp simd` loop that stays scalar.
                       $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
if(GRAFT_FUZZ)
  set(GRAFT_SANITIZE ON)  # a fuzzer sees what the sanitizers see
endif()
if(GRAFT_SANITIZE)
  target_compile_options(graft_flags INTERFACE -fsanitize=address,undefined
                         -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(graft_flags INTERFACE -fsanitize=address,undefined)
endif()
if(GRAFT_FUZZ)
  target_compile_options(graft_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

find_program(GRAFT_CCACHE ccache)
if(GRAFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${GRAFT_CCACHE})
endif()

find_program(GRAFT_MOLD mold)
if(GRAFT_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(GRAFT_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

function(graft_layer name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  if(sources)
    add_library(graft_${name} STATIC ${sources})
    target_include_directories(graft_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(graft_${name} PUBLIC ${ARG_DEPS} PRIVATE graft_flags)
    target_link_options(graft_${name} PUBLIC $<TARGET_PROPERTY:graft_flags,INTERFACE_LINK_OPTIONS>)
  else()
    add_library(graft_${name} INTERFACE)
    target_include_directories(graft_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(graft_${name} INTERFACE ${ARG_DEPS})
  endif()

  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*_test.cpp)
  if(GRAFT_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_compile_definitions(${name}_test PRIVATE
      GRAFT_SOURCE_DIR="${CMAKE_SOURCE_DIR}" GRAFT_BINARY="${CMAKE_BINARY_DIR}/graft")
    target_link_libraries(${name}_test PRIVATE graft_${name} graft_flags GTest::gtest
                          GTest::gtest_main GTest::gmock)
    gtest_discover_tests(${name}_test TEST_PREFIX ${name}. DISCOVERY_TIMEOUT 60
                         PROPERTIES TIMEOUT 900)
  endif()
endfunction()

# The Rust crates (tokenizer, chat templates, Parquet) as one static library behind a C interface.
find_program(GRAFT_CARGO cargo)
add_library(graft_rust INTERFACE)
if(EXISTS ${CMAKE_SOURCE_DIR}/rust/Cargo.toml)
  # Build folders may share one, as ./test's do.
  set(GRAFT_RUST_TARGET ${CMAKE_BINARY_DIR}/rust CACHE PATH "Where cargo builds")
  set(rust_target ${GRAFT_RUST_TARGET})
  set(rust_lib ${rust_target}/release/libgraft_rust.a)
  file(GLOB_RECURSE rust_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/rust/src/*.rs)
  add_custom_command(
    OUTPUT ${rust_lib}
    COMMAND ${GRAFT_CARGO} build --release --locked --quiet
            --manifest-path ${CMAKE_SOURCE_DIR}/rust/Cargo.toml --target-dir ${rust_target}
    DEPENDS ${rust_sources} ${CMAKE_SOURCE_DIR}/rust/Cargo.toml ${CMAKE_SOURCE_DIR}/rust/Cargo.lock
    USES_TERMINAL VERBATIM)
  add_custom_target(graft_rust_build DEPENDS ${rust_lib})
  add_dependencies(graft_rust graft_rust_build)
  target_link_libraries(graft_rust INTERFACE ${rust_lib} pthread dl m)
endif()
