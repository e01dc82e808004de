// What a function throws, for tests: always of one line.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "penstock/error.h"

namespace penstock::testing {

// A failure, and no error in particular, when nothing is thrown.
template <typename Function>
Error error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::kIo, "");
}

template <typename Function>
std::string message_of(const Function& function) {
  return error_of(function).what();
}

}  // namespace penstock::testing
