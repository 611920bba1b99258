// XLA's CompileOptionsProto, written by its field numbers (xla/pjrt/proto/compile_options.proto,
// xla/xla_data.proto).

#include "formats/protobuf.h"
#include "pjrt/client.h"

namespace graft::pjrt {
namespace {

using protobuf::bytes_field, protobuf::varint_field;

constexpr int kExecutableBuildOptions = 3, kEnvironmentOverrides = 7;  // CompileOptionsProto
constexpr int kDeviceOrdinal = 1, kReplicas = 4, kPartitions = 5, kUseSpmd = 6,
              kDeviceAssignment = 9, kUseShardy = 19;  // ExecutableBuildOptionsProto
constexpr int kReplicaCount = 1, kComputationCount = 2, kComputationDevices = 3;
constexpr int kReplicaDeviceIds = 1;
constexpr int kMapKey = 1, kMapValue = 2;
constexpr int kStringValue = 1, kBoolValue = 2, kIntegerValue = 3;  // OptionOverrideProto

std::string override_value(const Option& option) {
  if (const auto* text = std::get_if<std::string>(&option)) return bytes_field(kStringValue, *text);
  if (const auto* flag = std::get_if<bool>(&option)) return varint_field(kBoolValue, *flag);
  const auto* integer = std::get_if<int64_t>(&option);
  GRAFT_CHECK(integer != nullptr, "a flag of XLA is a text, a bool or an integer");
  return varint_field(kIntegerValue, static_cast<uint64_t>(*integer));
}

std::string device_assignment(const CompileSettings& settings) {
  std::string assignment =
      varint_field(kReplicaCount, 1) +
      varint_field(kComputationCount, static_cast<uint64_t>(settings.partitions));
  for (int64_t i = 0; i < settings.partitions; ++i) {
    const int64_t id =
        settings.device_ids.empty() ? i : settings.device_ids.at(static_cast<size_t>(i));
    assignment += bytes_field(kComputationDevices,
                              varint_field(kReplicaDeviceIds, static_cast<uint64_t>(id)));
  }
  return assignment;
}

}  // namespace

std::map<std::string, Option> exactness_flags(std::string_view platform) {
  if (platform != "cpu") return {};
  // The first lets maximum and minimum lose a NaN, the second reorders sums.
  return {{"xla_cpu_enable_fast_min_max", false}, {"xla_cpu_enable_fast_math", false}};
}

std::string compile_options(const CompileSettings& settings) {
  const bool split = settings.partitions > 1;
  std::string build = varint_field(kDeviceOrdinal, ~uint64_t{0});  // -1: by the assignment
  build += varint_field(kReplicas, 1);
  build += varint_field(kPartitions, static_cast<uint64_t>(settings.partitions));
  if (split) build += varint_field(kUseSpmd, 1);
  build += bytes_field(kDeviceAssignment, device_assignment(settings));
  if (split) build += varint_field(kUseShardy, 1);
  std::string options = bytes_field(kExecutableBuildOptions, build);
  for (const auto& [name, value] : settings.flags) {
    options +=
        bytes_field(kEnvironmentOverrides,
                    bytes_field(kMapKey, name) + bytes_field(kMapValue, override_value(value)));
  }
  return options;
}

}  // namespace graft::pjrt
