// The fixture of GPU tests. Without a GPU they are skipped with a message.
//
//   class ScanGpuTest : public test::GpuTest<testing::TestWithParam<Shape>> {};
#pragma once

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace halflife::test {

template <typename Test>
class GpuTest : public Test {
 protected:
  void SetUp() override {
#ifndef HALFLIFE_WITH_CUDA
    GTEST_SKIP() << "this build has no CUDA parts";
#endif
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
};

}  // namespace halflife::test
