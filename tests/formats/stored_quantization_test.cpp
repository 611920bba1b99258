#include "formats/stored_quantization.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/packed_blocks.h"
#include "formats/quantize.h"
#include "support/packed_samples.h"
#include "support/shared.h"
#include "support/temporary.h"

namespace graft::testing {
namespace {

using Tensors = std::vector<std::pair<std::string, Tensor>>;
constexpr const char* kName = "layer.weight";

const StoredQuantization kBitsAndBytes{StoredQuantization::Method::kBitsAndBytes};
const StoredQuantization kFp8{StoredQuantization::Method::kFp8, 128, 128};

PackedTensor sample(PackedKind kind, int64_t rows, int64_t columns) {
  const PackedLayout layout{kind, 64, rows, columns};
  return {layout, random_packed(layout, 8)};
}

SafetensorsFile written(const TemporaryFolder& folder, const Tensors& tensors) {
  write_safetensors(folder / "model.safetensors", tensors);
  return SafetensorsFile::open(folder / "model.safetensors");
}

Tensor& part(Tensors& tensors, const std::string& suffix) {
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with(suffix)) return tensor;
  }
  ADD_FAILURE() << "no part " << suffix;
  return tensors[0].second;
}

std::string refusal(const Tensors& tensors, int64_t rows, int64_t columns,
                    const StoredQuantization& method = kBitsAndBytes) {
  const TemporaryFolder folder;
  try {
    const SafetensorsFile file = written(folder, tensors);
    read_stored_weight(file, kName, rows, columns, method);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(StoredQuantization, BitsAndBytesComesBackBitForBit) {
  for (const PackedKind kind : {PackedKind::kNf4, PackedKind::kNf4Double}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{48, 160}, {30, 50}, {7, 64}}) {
      const PackedTensor packed = sample(kind, rows, columns);
      const TemporaryFolder folder;
      const SafetensorsFile file = written(folder, bitsandbytes_tensors(kName, packed, "float32"));
      const PackedTensor back = read_stored_weight(file, kName, rows, columns, kBitsAndBytes);
      EXPECT_EQ(back.layout, packed.layout);
      const Tensor a = expand_packed(packed.layout, packed.packed);
      const Tensor b = expand_packed(back.layout, back.packed);
      EXPECT_EQ(std::memcmp(a.bytes(), b.bytes(), a.size_bytes()), 0);
    }
  }
}

TEST(StoredQuantization, DamagedBitsAndBytesWeightsAreRefusedByName) {
  const PackedTensor packed = sample(PackedKind::kNf4Double, 48, 160);
  const Tensors whole = bitsandbytes_tensors(kName, packed, "float32");
  EXPECT_EQ(refusal(whole, 48, 160), "");
  for (size_t missing = 1; missing < whole.size(); ++missing) {
    Tensors tensors = whole;
    tensors.erase(tensors.begin() + static_cast<int64_t>(missing));
    EXPECT_NE(refusal(tensors, 48, 160).find(whole[missing].first), std::string::npos);
  }
  EXPECT_NE(refusal(whole, 160, 48).find("shape"), std::string::npos);
  EXPECT_NE(refusal(whole, 48, 128).find(kName), std::string::npos);

  const auto with_state = [&](const std::string& from, const std::string& to) {
    Tensors tensors = whole;
    Tensor& state = part(tensors, "nf4");
    std::string text(reinterpret_cast<const char*>(state.bytes()), state.size_bytes());
    text.replace(text.find(from), from.size(), to);
    state = Tensor::of<uint8_t>({static_cast<int64_t>(text.size())}, {text.begin(), text.end()});
    return refusal(tensors, 48, 160);
  };
  EXPECT_NE(with_state("\"blocksize\":64", "\"blocksize\":32").find("absmax"), std::string::npos);
  EXPECT_NE(with_state("\"blocksize\":64", "\"blocksize\":0").find("blocksize"), std::string::npos);
  EXPECT_NE(with_state("nf4", "fp4").find("quant_type"), std::string::npos);
  EXPECT_NE(
      with_state("\"nested_blocksize\":256", "\"nested_blocksize\":-1").find("nested_blocksize"),
      std::string::npos);
  EXPECT_NE(with_state("{", "[").find("quant_state"), std::string::npos);

  Tensors fault = whole;
  Tensor& scales = part(fault, ".nested_absmax") = part(fault, ".nested_absmax").clone();
  scales.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(refusal(fault, 48, 160).find("not finite"), std::string::npos);
  Tensors levels = whole;
  Tensor& map = part(levels, ".quant_map") = part(levels, ".quant_map").clone();
  map.data<float>()[3] = -0.4F;
  EXPECT_NE(refusal(levels, 48, 160).find("levels"), std::string::npos);
}

// fp8 weights [rows, columns] with a scale for each 128 x 128.
Tensors fp8_weight(int64_t rows, int64_t columns, Tensor& expected) {
  Tensor codes = Tensor::empty(DType::kF8E4M3FN, {rows, columns});
  Tensor scales = Tensor::empty(DType::kF32, {(rows + 127) / 128, (columns + 127) / 128});
  for (int64_t i = 0; i < scales.elements(); ++i) {
    scales.data<float>()[i] = 0.001F * static_cast<float>(i + 1);
  }
  const Tensor w = random_weights(rows, columns, 5);
  expected = Tensor::empty(DType::kF32, {rows, columns});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = r * columns + c;
      const uint8_t code = f32_to_f8(DType::kF8E4M3FN, 100 * w.data<float>()[i]);
      codes.mutable_bytes()[i] = static_cast<std::byte>(code);
      expected.data<float>()[i] = f8_to_f32(DType::kF8E4M3FN, code) *
                                  scales.data<float>()[r / 128 * scales.shape()[1] + c / 128];
    }
  }
  return {{kName, codes}, {"layer.weight_scale_inv", scales}};
}

TEST(StoredQuantization, Fp8WithBlockScales) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{130, 256}, {64, 96}, {200, 192}}) {
    Tensor expected;
    const Tensors tensors = fp8_weight(rows, columns, expected);
    const TemporaryFolder folder;
    const SafetensorsFile file = written(folder, tensors);
    const PackedTensor read = read_stored_weight(file, kName, rows, columns, kFp8);
    const Tensor values = expand_packed(read.layout, read.packed);
    EXPECT_EQ(std::memcmp(values.bytes(), expected.bytes(), values.size_bytes()), 0) << columns;
  }
}

TEST(StoredQuantization, DamagedFp8WeightsAreRefusedByName) {
  Tensor expected;
  const Tensors whole = fp8_weight(130, 256, expected);
  EXPECT_EQ(refusal(whole, 130, 256, kFp8), "");
  EXPECT_NE(refusal({whole[0]}, 130, 256, kFp8).find("layer.weight_scale_inv"), std::string::npos);
  EXPECT_NE(refusal(whole, 256, 130, kFp8).find("shape"), std::string::npos);
  StoredQuantization other = kFp8;
  other.block_columns = 64;
  EXPECT_NE(refusal(whole, 130, 256, other).find("blocks of 128 x 64"), std::string::npos);
  Tensors fault = whole;
  fault[1].second = fault[1].second.clone();
  fault[1].second.data<float>()[2] = std::numeric_limits<float>::infinity();
  EXPECT_NE(refusal(fault, 130, 256, kFp8).find("not finite"), std::string::npos);
  fault = whole;
  fault[0].second = fault[0].second.clone();
  fault[0].second.mutable_bytes()[300] = std::byte{0xFF};
  EXPECT_NE(refusal(fault, 130, 256, kFp8).find("[1, 44]"), std::string::npos);
}

StoredQuantization parsed(const std::string& text) {
  const nlohmann::json document = nlohmann::json::parse(text);
  return read_stored_quantization(JsonObject(document, "config.json"));
}

TEST(StoredQuantization, OtherMethodsAreRefusedByName) {
  EXPECT_EQ(parsed("{}").method, StoredQuantization::Method::kNone);
  for (const char* method : {"gptq", "awq", "hqq", "compressed-tensors"}) {
    try {
      parsed(fmt::format(R"({{"quantization_config": {{"quant_method": "{}"}}}})", method));
      ADD_FAILURE() << method;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(method), std::string::npos);
    }
  }
  EXPECT_THROW(parsed(R"({"quantization_config": {"quant_method": "fp8"}})"), Error);
  EXPECT_THROW(parsed(R"({"quantization_config":
      {"quant_method": "bitsandbytes", "load_in_8bit": true}})"),
               Error);
}

// gpt_oss as released: experts' blocks [experts, out, n, 16]; the reference is [experts, in, out].
TEST(StoredQuantization, Mxfp4EqualsReference) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/gpt_oss_a/mxfp4");
  const SafetensorsFile file = SafetensorsFile::open(folder / "model.safetensors");
  const SafetensorsFile reference = SafetensorsFile::open(folder / "reference.safetensors");
  int compared = 0;
  for (const std::string& name : reference.names()) {
    if (!name.starts_with("dequant.")) continue;
    const std::string tensor = name.substr(8);
    const Tensor expected = reference.tensor(name);
    const Tensor values =
        expand_mxfp4(file.tensor(tensor + "_blocks"), file.tensor(tensor + "_scales"), tensor);
    const int64_t experts = expected.shape()[0], in = expected.shape()[1],
                  out = expected.shape()[2];
    ASSERT_EQ(values.elements(), expected.elements());
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < in; ++i) {
          ASSERT_EQ(values.data<float>()[(e * out + o) * in + i],
                    expected.data<float>()[(e * in + i) * out + o])
              << name;
        }
      }
    }
    ++compared;
  }
  EXPECT_EQ(compared, 2);
  EXPECT_THROW(expand_mxfp4(Tensor::zeros(DType::kU8, {2, 3, 16}),
                            Tensor::zeros(DType::kU8, {2, 4}), "experts"),
               Error);
}

}  // namespace
}  // namespace graft::testing
