#include <unordered_map>

#include "cpu/kernels/table.h"

namespace graft::cpu {
namespace {

using Table = std::unordered_map<const Op*, std::vector<const KernelEntry*>>;

Table merge_tables() {
  Table table;
  for (const std::span<const KernelEntry> entries :
       {linear_kernels(), attention_kernels(), norm_kernels(), rope_kernels(), activation_kernels(),
        loss_kernels(), embedding_kernels(), dropout_kernels(), optimizer_kernels(),
        constant_kernels(), unary_kernels(), binary_kernels(), select_kernels(), shape_kernels(),
        reduce_kernels(), dot_general_kernels(), index_kernels()}) {
    for (const KernelEntry& entry : entries) table[entry.op].push_back(&entry);
  }
  return table;
}

}  // namespace

const Kernel* find_kernel(const Node& node, std::span<const Type> in, std::span<const Type> out) {
  static const Table table = merge_tables();
  const auto at = table.find(node.op);
  if (at == table.end()) return nullptr;
  for (const KernelEntry* entry : at->second) {
    if (entry->supports == nullptr || entry->supports(node, in, out)) return &entry->kernel;
  }
  return nullptr;
}

}  // namespace graft::cpu
