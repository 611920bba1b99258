# What the PJRT executor is built from: XLA's C header, which scripts/setup.sh fetches into the user's
# cache folder, and the pinned wheels of the plugins (scripts/plugins/*.txt), which become texts in the
# program so that an installed graft can fetch them too.
if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(graft_cache "$ENV{XDG_CACHE_HOME}/graft")
else()
  set(graft_cache "$ENV{HOME}/.cache/graft")
endif()
find_path(GRAFT_PJRT_HEADER pjrt_c_api.h HINTS ${graft_cache}/include
          DOC "Folder of XLA's pjrt_c_api.h")
if(NOT GRAFT_PJRT_HEADER)
  message(FATAL_ERROR "XLA's header pjrt_c_api.h is not in ${graft_cache}/include.\n"
                      "Run scripts/setup.sh, which fetches it, or give -DGRAFT_PJRT_HEADER=FOLDER.")
endif()

set(generated ${CMAKE_BINARY_DIR}/generated)
set(text "#pragma once\n// Generated from scripts/plugins/*.txt.\n\nnamespace graft::pjrt {\n")
foreach(kind Cpu Cuda13 Tpu)
  string(TOLOWER ${kind} file)
  set(file ${CMAKE_SOURCE_DIR}/scripts/plugins/${file}.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} lines)
  string(APPEND text "inline constexpr const char* k${kind}Requirements = R\"(${lines})\";\n")
endforeach()
string(APPEND text "}  // namespace graft::pjrt\n")
file(CONFIGURE OUTPUT ${generated}/pjrt/requirements.h CONTENT "${text}" @ONLY)

# The header is C: its table names each field as the field's type, which GCC refuses in C++ unless the
# type is qualified.
file(READ ${GRAFT_PJRT_HEADER}/pjrt_c_api.h header)
string(REPLACE "fn_type* fn_type" "::fn_type* fn_type" header "${header}")
file(CONFIGURE OUTPUT ${generated}/pjrt_c_api.h CONTENT "${header}" @ONLY)

add_library(graft_pjrt_header INTERFACE)
target_include_directories(graft_pjrt_header SYSTEM INTERFACE ${generated})
