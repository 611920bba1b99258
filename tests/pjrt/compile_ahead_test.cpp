// A compiler that fails, crashes or does not answer is reported; whatever it does, the caller
// lives.

#include "pjrt/compile_ahead.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>

#include "base/file.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace graft::pjrt {
namespace {

using graft::testing::error_of;
using ::testing::HasSubstr;

TEST(CompileAhead, ReadsTheMemoryOfARefusal) {
  const auto memory = memory_of_refusal(
      "RESOURCE_EXHAUSTED: ... Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G.");
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->first, int64_t{20} * (1 << 30) + (1 << 29));
  EXPECT_EQ(memory->second, int64_t{63} << 28);
  EXPECT_FALSE(memory_of_refusal("INTERNAL: something else").has_value());
}

// Children that are no compilers: shell scripts. The plugin is a file of the name that is looked
// for.
class FakeCompiler : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("GRAFT_PLUGINS")) before_ = before;
    make_directories(folder_ / "cpu/lammps_jax_pjrt_cpu");
    write_file_atomically(folder_ / "cpu/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "");
    ::setenv("GRAFT_PLUGINS", folder_.path().c_str(), 1);
  }
  void TearDown() override {
    if (before_.empty()) ::unsetenv("GRAFT_PLUGINS");
    else ::setenv("GRAFT_PLUGINS", before_.c_str(), 1);
  }
  AheadResult run(const std::string& script) {
    const std::filesystem::path program = folder_ / "child";
    write_file_atomically(program, "#!/bin/sh\n" + script + "\n");
    ::chmod(program.c_str(), 0700);
    AheadJob job{parse_target("pjrt:cpu"), "module {}", 2, "", program};
    return compile_ahead(job);
  }
  graft::testing::TemporaryFolder folder_;
  std::string before_;
};

TEST_F(FakeCompiler, ACrashIsReported) {
  const AheadResult result = run("echo about to crash >&2; kill -SEGV $$");
  EXPECT_FALSE(result.memory.has_value());
  EXPECT_THAT(result.failure, HasSubstr("signal 11"));
  EXPECT_THAT(result.failure, HasSubstr("about to crash"));
}

TEST_F(FakeCompiler, TheKillerOfProcessesIsNamed) {
  EXPECT_THAT(run("kill -KILL $$").failure, HasSubstr("memory is used up"));
}

TEST_F(FakeCompiler, AFailureIsPassedOn) {
  const AheadResult result = run("echo 'error: Used 3.0G of 2.0G hbm.'; exit 1");
  EXPECT_TRUE(result.out_of_memory);
  EXPECT_EQ(result.needed_bytes, int64_t{3} << 30);
  EXPECT_EQ(result.capacity_bytes, int64_t{2} << 30);
}

TEST_F(FakeCompiler, AnAnswerThatIsNoneIsAnError) {
  EXPECT_NE(error_of([&] { run("exit 0"); }), "");
}

TEST_F(FakeCompiler, AMissingPluginSaysHowToGetIt) {
  AheadJob job{parse_target("v5e:2x2"), "", 4, "", "/bin/true"};
  EXPECT_THAT(error_of([&] { compile_ahead(job); }), HasSubstr("graft plugins install tpu"));
}

TEST_F(FakeCompiler, ASavedProgramIsKnownAgain) {
  const std::filesystem::path saved = folder_ / "saved";
  const Target target = parse_target("pjrt:cpu");
  const std::string result =
      R"({"memory": {"argument_bytes": 1, "output_bytes": 2, "alias_bytes": 1, "temporary_bytes": 4,
                     "code_bytes": 0, "peak_bytes": 0},
          "device_kind": "cpu", "seconds": 1.5, "flops": 0})";
  write_file_atomically(folder_ / "result", result);
  const std::filesystem::path program = folder_ / "child";
  write_file_atomically(program, "#!/bin/sh\ncp " + (folder_ / "result").string() +
                                     " $2/result.json; printf bytes > $2/executable\n");
  ::chmod(program.c_str(), 0700);
  const AheadResult compiled = compile_ahead({target, "module {}", 2, saved, program});
  ASSERT_TRUE(compiled.memory.has_value());
  EXPECT_EQ(compiled.memory->total_bytes(), 6);
  EXPECT_EQ(load_saved_program(saved, target, "module {}", 2), "bytes");
  const auto refused = [&](const std::string& text, int64_t partitions) {
    return error_of([&] { load_saved_program(saved, target, text, partitions); });
  };
  EXPECT_THAT(refused("module { }", 2), HasSubstr("another"));
  EXPECT_THAT(refused("module {}", 4), HasSubstr("another"));
  EXPECT_THAT(error_of([&] { load_saved_program(program, target, "module {}", 2); }),
              HasSubstr("no program"));
}

}  // namespace
}  // namespace graft::pjrt
