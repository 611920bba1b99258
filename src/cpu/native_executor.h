#pragma once
// The native executor behind the common interface (ir/executor.h): programs over one arena and the
// variables' own storage.
//
//   std::unique_ptr<Executor> executor = cpu::make_native_executor(2);

#include <memory>

#include "ir/executor.h"

namespace graft::cpu {

std::unique_ptr<Executor> make_native_executor(int threads);

}  // namespace graft::cpu
