#include "pjrt/device_array.h"

#include <pjrt_c_api.h>

#include <cstring>
#include <utility>

namespace graft::pjrt {
namespace {

PJRT_Buffer_Type buffer_type(DType dtype) {
  switch (dtype) {
    case DType::kBool: return PJRT_Buffer_Type_PRED;
    case DType::kU8: return PJRT_Buffer_Type_U8;
    case DType::kS8: return PJRT_Buffer_Type_S8;
    case DType::kU32: return PJRT_Buffer_Type_U32;
    case DType::kS32: return PJRT_Buffer_Type_S32;
    case DType::kS64: return PJRT_Buffer_Type_S64;
    case DType::kF8E4M3FN: return PJRT_Buffer_Type_F8E4M3FN;
    case DType::kF8E5M2: return PJRT_Buffer_Type_F8E5M2;
    case DType::kF8E4M3FNUZ: return PJRT_Buffer_Type_F8E4M3FNUZ;
    case DType::kF8E5M2FNUZ: return PJRT_Buffer_Type_F8E5M2FNUZ;
    case DType::kF16: return PJRT_Buffer_Type_F16;
    case DType::kBF16: return PJRT_Buffer_Type_BF16;
    case DType::kF32: return PJRT_Buffer_Type_F32;
    case DType::kF64: return PJRT_Buffer_Type_F64;
    case DType::kU4:
    case DType::kS4: break;
  }
  throw Error(fmt::format("an array of {} cannot be put on a device", dtype_name(dtype)), "",
              "use compute.executor: native");
}

void await(const Plugin& plugin, PJRT_Event* event, std::string_view doing) {
  GRAFT_PJRT_ARGS(PJRT_Event_Await_Args, wait);
  wait.event = event;
  PJRT_Error* error = plugin.api().PJRT_Event_Await(&wait);
  GRAFT_PJRT_ARGS(PJRT_Event_Destroy_Args, destroy);
  destroy.event = event;
  plugin.api().PJRT_Event_Destroy(&destroy);
  plugin.check(error, doing);
}

DeviceBuffer put_buffer(const Client& client, PJRT_Device* device, const std::byte* bytes,
                        const Type& type) {
  const Plugin& plugin = client.plugin();
  GRAFT_PJRT_ARGS(PJRT_Client_BufferFromHostBuffer_Args, args);
  args.client = client.handle();
  args.data = bytes;
  args.type = buffer_type(type.dtype);
  args.dims = type.shape.data();
  args.num_dims = type.shape.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = device;
  plugin.call(plugin.api().PJRT_Client_BufferFromHostBuffer, args, "putting data on a device");
  DeviceBuffer buffer(plugin, args.buffer);
  await(plugin, args.done_with_host_buffer, "putting data on a device");
  return buffer;
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// The part of a stack that a device holds, put together from the tensors of the members.
Tensor block_of(std::span<const Tensor> parts, bool stacked, const ShardSlice& slice) {
  const DType dtype = parts[0].dtype();
  const size_t bytes = dtype_bytes(dtype, 1);
  Tensor block = Tensor::empty(dtype, slice.extent);
  if (!stacked) {
    copy_block(parts[0].bytes(), parts[0].shape(), slice.begin, block.mutable_bytes(), slice.extent,
               Shape(slice.extent.size(), 0), slice.extent, bytes);
    return block;
  }
  const Shape begin(slice.begin.begin() + 1, slice.begin.end());
  const Shape extent(slice.extent.begin() + 1, slice.extent.end());
  const size_t member_bytes = dtype_bytes(dtype, static_cast<size_t>(element_count(extent)));
  for (int64_t i = 0; i < slice.extent[0]; ++i) {
    const Tensor& part = parts[static_cast<size_t>(slice.begin[0] + i)];
    copy_block(part.bytes(), part.shape(), begin,
               block.mutable_bytes() + static_cast<size_t>(i) * member_bytes, extent,
               Shape(extent.size(), 0), extent, bytes);
  }
  return block;
}

}  // namespace

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : plugin_(other.plugin_), buffer_(std::exchange(other.buffer_, nullptr)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(plugin_, other.plugin_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (buffer_ == nullptr) return;
  GRAFT_PJRT_ARGS(PJRT_Buffer_Destroy_Args, args);
  args.buffer = buffer_;
  plugin_->api().PJRT_Buffer_Destroy(&args);
}

void DeviceBuffer::read(void* to, size_t bytes) const {
  GRAFT_PJRT_ARGS(PJRT_Buffer_ToHostBuffer_Args, args);
  args.src = buffer_;
  args.dst = to;
  args.dst_size = bytes;
  plugin_->call(plugin_->api().PJRT_Buffer_ToHostBuffer, args, "fetching data from a device");
  await(*plugin_, args.event, "running the program");
}

Tensor DeviceArray::fetch() const {
  Tensor whole = Tensor::empty(type.dtype, type.shape);
  if (sharding.spec.replicated()) {
    buffers.front().read(whole.mutable_bytes(), whole.size_bytes());
    return whole;
  }
  for (int64_t device : owners(sharding)) {
    const ShardSlice slice = shard_slice(sharding, type.shape, device);
    Tensor part = Tensor::empty(type.dtype, slice.extent);
    buffers.at(static_cast<size_t>(device)).read(part.mutable_bytes(), part.size_bytes());
    copy_block(part.bytes(), slice.extent, Shape(slice.extent.size(), 0), whole.mutable_bytes(),
               type.shape, slice.begin, slice.extent, dtype_bytes(type.dtype, 1));
  }
  return whole;
}

DeviceArray put_array(const Client& client, std::span<const Tensor> parts, bool stacked,
                      const NamedSharding& sharding) {
  GRAFT_CHECK(!parts.empty() && (stacked || parts.size() == 1));
  Type type{parts[0].dtype(), parts[0].shape()};
  if (stacked) type.shape.insert(type.shape.begin(), static_cast<int64_t>(parts.size()));
  DeviceArray array{type, sharding, {}};
  const auto devices = static_cast<size_t>(sharding.mesh.devices());
  const bool replicated = sharding.spec.replicated();
  Tensor block;
  ShardSlice last;
  for (size_t d = 0; d < devices; ++d) {
    ShardSlice slice{Shape(type.shape.size(), 0), type.shape};
    if (!replicated) slice = shard_slice(sharding, type.shape, static_cast<int64_t>(d));
    if (!stacked && replicated) {
      block = parts[0];
    } else if (!block.defined() || !(slice == last)) {
      block = block_of(parts, stacked, slice);
    }
    last = slice;
    array.buffers.push_back(
        put_buffer(client, client.devices().at(d), block.bytes(), {type.dtype, slice.extent}));
  }
  return array;
}

void copy_block(const std::byte* from, const Shape& from_shape, const Shape& from_begin,
                std::byte* to, const Shape& to_shape, const Shape& to_begin, const Shape& extent,
                size_t element_bytes) {
  const size_t rank = extent.size();
  if (element_count(extent) == 0) return;
  const std::vector<int64_t> from_strides = strides_of(from_shape),
                             to_strides = strides_of(to_shape);
  // Trailing axes that are whole on both sides are one run of bytes.
  size_t whole = rank;
  int64_t run = 1;
  while (whole > 0) {
    --whole;
    run *= extent[whole];
    if (extent[whole] != from_shape[whole] || extent[whole] != to_shape[whole]) break;
  }
  Shape index(whole, 0);
  while (true) {
    int64_t source = 0, target = 0;
    for (size_t axis = 0; axis < rank; ++axis) {
      const int64_t i = axis < whole ? index[axis] : 0;
      source += (from_begin[axis] + i) * from_strides[axis];
      target += (to_begin[axis] + i) * to_strides[axis];
    }
    std::memcpy(to + static_cast<size_t>(target) * element_bytes,
                from + static_cast<size_t>(source) * element_bytes,
                static_cast<size_t>(run) * element_bytes);
    size_t axis = whole;
    while (axis > 0 && ++index[axis - 1] == extent[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

}  // namespace graft::pjrt
