#include "checkpoint/base_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "base/file.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"
#include "support/temporary.h"
#include "support/tiny_model.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::tiny_config;
using testing::write_tiny_model;

BaseIdentity identity_of(const fs::path& model) { return BaseIdentityTask(model).get(); }

TEST(BaseIdentity, IsOfEveryTensorsBytes) {
  TemporaryFolder folder;
  write_tiny_model(folder.path());
  const BaseIdentity identity = identity_of(folder.path());
  const SafetensorsFile file = SafetensorsFile::open(folder.path());
  EXPECT_EQ(identity.tensors.size(), file.names().size());
  for (const std::string& name : file.names()) {
    const BaseTensorIdentity& t = identity.tensors.at(name);
    EXPECT_EQ(t.sha256, sha256_hex(file.bytes(name)));
    EXPECT_EQ(t.shape, file.find(name)->shape);
    EXPECT_EQ(t.type, "F32");
  }
  const BaseIdentity read = parse_base_identity(format_base_identity(identity), "base.json");
  EXPECT_EQ(read.tensors, identity.tensors);
  EXPECT_TRUE(base_differences(identity, read).empty());
  EXPECT_TRUE(base_differences(identity, base_outline(folder.path())).empty());
}

TEST(BaseIdentity, SaysWhatDiffers) {
  TemporaryFolder folder;
  fs::create_directory(folder / "a");
  fs::create_directory(folder / "b");
  write_tiny_model(folder / "a");
  write_tiny_model(folder / "b");
  const BaseIdentity a = identity_of(folder / "a");
  EXPECT_TRUE(base_differences(a, identity_of(folder / "b")).empty());
  {
    std::fstream file(folder / "b/model.safetensors", std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  const std::string last = SafetensorsFile::open(folder / "b").names().back();
  EXPECT_THAT(base_differences(a, identity_of(folder / "b")),
              ElementsAre(last + " has other values"));
  nlohmann::json config = tiny_config();
  config["rms_norm_eps"] = 1e-6;
  write_tiny_model(folder / "b", config);
  EXPECT_THAT(base_differences(a, identity_of(folder / "b")), ElementsAre("config.json differs"));
  config["intermediate_size"] = 40;
  write_tiny_model(folder / "b", config);
  EXPECT_THAT(base_differences(a, identity_of(folder / "b"))[0],
              HasSubstr("mlp.down_proj.weight has shape [32, 40], not [32, 48]"));
}

// A large file is hashed once, and again when it changes.
TEST(BaseIdentity, KeepsChecksumsOfLargeFiles) {
  TemporaryFolder folder;
  ::setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
  const fs::path model = folder / "model";
  fs::create_directory(model);
  write_file_atomically(model / "config.json", "{}");
  Tensor large = Tensor::zeros(DType::kF32, {16 * 1024 * 1024 + 1});
  write_safetensors(model / "model.safetensors", {{"x", large}});
  const BaseIdentity first = identity_of(model);
  ASSERT_EQ(std::distance(fs::directory_iterator(folder / "cache/graft/checksums"), {}), 1);
  // What the cache says is believed.
  const fs::path cached = fs::directory_iterator(folder / "cache/graft/checksums")->path();
  std::string text = read_text_file(cached);
  text.replace(text.find(first.tensors.at("x").sha256), 4, "beef");
  write_file_atomically(cached, text);
  EXPECT_EQ(identity_of(model).tensors.at("x").sha256.substr(0, 4), "beef");
  // Unless the file changed meanwhile, or the cache is broken.
  fs::last_write_time(model / "model.safetensors", fs::file_time_type::clock::now());
  EXPECT_EQ(identity_of(model).tensors, first.tensors);
  write_file_atomically(cached, "{");
  EXPECT_EQ(identity_of(model).tensors, first.tensors);
  ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace graft
