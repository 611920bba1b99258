#pragma once
// The message of the graft::Error that an expression raises:
//
//   EXPECT_THAT(error_of([] { read("missing"); }), HasSubstr("missing"));
//
// "" where nothing is raised; any other exception is a failure of the test.

#include <string>

#include "base/error.h"

namespace graft::testing {

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace graft::testing
