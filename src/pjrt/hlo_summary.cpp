#include "pjrt/hlo_summary.h"

#include <functional>

#include "base/error.h"

namespace graft::pjrt {
namespace {

// Field numbers.
constexpr int kModuleOfConfig = 1;                                  // HloModuleProtoWithConfig
constexpr int kComputations = 3;                                    // HloModuleProto
constexpr int kInstructions = 2;                                    // HloComputationProto
constexpr int kOpcode = 2, kShape = 3;                              // HloInstructionProto
constexpr int kElementType = 2, kDimensions = 3, kTupleShapes = 4;  // ShapeProto

constexpr int kDeepest = 64;  // nested tuples

[[noreturn]] void refuse() {
  throw Error("the compiled program is not the message that XLA describes", "hlo.proto");
}

// Protocol buffers' wire format, read: never beyond the bytes given.
class Message {
 public:
  explicit Message(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    int number = 0;
    uint64_t value = 0;      // varints
    std::string_view bytes;  // strings, messages, packed numbers
  };

  bool next(Field& field) {
    if (bytes_.empty()) return false;
    const uint64_t key = varint();
    field = {static_cast<int>(key >> 3), 0, {}};
    switch (key & 7) {
      case 0: field.value = varint(); return true;
      case 1: take(8); return true;
      case 2: field.bytes = take(varint()); return true;
      case 5: take(4); return true;
      default: refuse();
    }
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    refuse();
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view take(uint64_t count) {
    if (count > bytes_.size()) refuse();
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  std::string_view bytes_;
};

void each_field(std::string_view message, int number,
                const std::function<void(const Message::Field&)>& visit) {
  Message reader(message);
  for (Message::Field field; reader.next(field);) {
    if (field.number == number) visit(field);
  }
}

// xla.PrimitiveType, in bits; 0 for what is no array.
int64_t bits_of(uint64_t type) {
  switch (type) {
    case 1: return 8;  // PRED
    case 2:
    case 6:
    case 19:
    case 20: return 8;  // S8, U8, F8E5M2, F8E4M3FN
    case 3:
    case 7:
    case 10:
    case 16: return 16;  // S16, U16, F16, BF16
    case 4:
    case 8:
    case 11: return 32;  // S32, U32, F32
    case 5:
    case 9:
    case 12:
    case 15: return 64;   // S64, U64, F64, C64
    case 18: return 128;  // C128
    case 21:
    case 22: return 4;  // S4, U4
    case 23:
    case 24:
    case 25:
    case 28:
    case 29: return 8;  // other forms of F8
    default: return 0;
  }
}

double bytes_of_shape(std::string_view shape, int depth = 0) {
  if (depth > kDeepest) refuse();
  double bits = 0, elements = 1, parts = 0;
  Message reader(shape);
  for (Message::Field field; reader.next(field);) {
    if (field.number == kElementType) {
      bits = static_cast<double>(bits_of(field.value));
    } else if (field.number == kDimensions && !field.bytes.empty()) {
      for (Message packed(field.bytes); !packed.empty();) {
        elements *= static_cast<double>(packed.varint());
      }
    } else if (field.number == kDimensions) {
      elements *= static_cast<double>(field.value);
    } else if (field.number == kTupleShapes) {
      parts += bytes_of_shape(field.bytes, depth + 1);
    }
  }
  return parts + elements * bits / 8;
}

// "all-gather-start" is an all-gather; its end would count it twice. Empty: no
// collective.
std::string kind_of(std::string_view opcode) {
  if (opcode.ends_with("-start")) opcode.remove_suffix(6);
  for (const std::string_view kind :
       {"all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter",
        "ragged-all-to-all"}) {
    if (opcode == kind) return std::string(kind);
  }
  return "";
}

void count_instruction(std::string_view instruction, Collectives& found) {
  std::string_view opcode, shape;
  Message reader(instruction);
  for (Message::Field field; reader.next(field);) {
    if (field.number == kOpcode) opcode = field.bytes;
    if (field.number == kShape) shape = field.bytes;
  }
  const std::string kind = kind_of(opcode);
  if (kind.empty()) return;
  CollectiveCount& counted = found[kind];
  ++counted.count;
  counted.bytes += static_cast<int64_t>(bytes_of_shape(shape));
}

}  // namespace

Collectives count_collectives(std::string_view format, std::string_view code) {
  if (format == "hlo_with_config") {
    std::string_view module;
    each_field(code, kModuleOfConfig, [&](const Message::Field& f) { module = f.bytes; });
    return count_collectives("hlo", module);
  }
  if (format != "hlo") {
    throw Error(fmt::format("the compiled program comes as \"{}\"", format), "collectives");
  }
  Collectives found;
  each_field(code, kComputations, [&](const Message::Field& computation) {
    each_field(computation.bytes, kInstructions, [&](const Message::Field& instruction) {
      count_instruction(instruction.bytes, found);
    });
  });
  return found;
}

}  // namespace graft::pjrt
