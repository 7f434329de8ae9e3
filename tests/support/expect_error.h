// Checks that a statement throws halflife::Error with this exit code and a message that contains
// each piece.
//
//   EXPECT_HL_ERROR(Dataset::Open(path), ExitCode::kData, "train-00000.h5", "truncated");
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "core/error.h"

namespace halflife::test {

template <typename Statement>
void ExpectError(Statement&& statement, ExitCode code, std::initializer_list<std::string> pieces,
                 const char* file, int line) {
  const testing::ScopedTrace trace(file, line, "here");
  try {
    statement();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    for (const std::string& piece : pieces) EXPECT_THAT(error.what(), testing::HasSubstr(piece));
    return;
  }
  ADD_FAILURE() << "no halflife::Error was thrown";
}

}  // namespace halflife::test

#define EXPECT_HL_ERROR(statement, code, ...)                                               \
  ::halflife::test::ExpectError([&] { static_cast<void>(statement); }, code, {__VA_ARGS__}, \
                                __FILE__, __LINE__)
