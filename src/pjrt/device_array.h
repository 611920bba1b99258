#pragma once
// An array on the devices of a client: one buffer a device, each the whole array or its shard.
//
//   DeviceArray a = put_array(client, {tensor}, false, std::nullopt);
//   Tensor back = a.fetch()[0];

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "ir/graph.h"
#include "pjrt/client.h"
#include "sharding/partition_spec.h"

struct PJRT_Buffer;

namespace graft::pjrt {

// Owns one buffer of a device.
class DeviceBuffer {
 public:
  DeviceBuffer(const Plugin& plugin, PJRT_Buffer* buffer) : plugin_(&plugin), buffer_(buffer) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  PJRT_Buffer* handle() const { return buffer_; }
  // Waits for the value, and writes `bytes` of it, row by row.
  void read(void* to, size_t bytes) const;

 private:
  const Plugin* plugin_;
  PJRT_Buffer* buffer_;
};

struct DeviceArray {
  Type type;                          // of the whole array
  NamedSharding sharding;             // replicated where its spec is empty
  std::vector<DeviceBuffer> buffers;  // one a device

  Tensor fetch() const;  // the whole array
};

// Puts parts on the devices: one tensor, or with `stacked` several of one type as [parts, ...]. The
// sharding is that of the array as it is put.
DeviceArray put_array(const Client& client, std::span<const Tensor> parts, bool stacked,
                      const NamedSharding& sharding);

// A strided block of a row-major array, and where it goes: the two shapes differ, the block does
// not.
void copy_block(const std::byte* from, const Shape& from_shape, const Shape& from_begin,
                std::byte* to, const Shape& to_shape, const Shape& to_begin, const Shape& extent,
                size_t element_bytes);

}  // namespace graft::pjrt
