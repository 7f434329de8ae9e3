// main of the tests of CPU kernels: runs each test once per instruction set of this machine. It
// takes the same arguments as test_main.cc.
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <vector>

#include "kernels/common/cpu/instruction_set.h"
#include "support/tests_of_sources.h"

namespace halflife::kernels::cpu {
namespace {

class EveryInstructionSet : public testing::EmptyTestEventListener {
 public:
  explicit EveryInstructionSet(std::vector<InstructionSet> sets) : sets_(std::move(sets)) {}
  void OnTestIterationStart(const testing::UnitTest&, int iteration) override {
    const InstructionSet set = sets_[static_cast<size_t>(iteration) % sets_.size()];
    UseInstructionSet(set);
    std::cout << "Instruction set: " << NameOf(set) << std::endl;
  }

 private:
  std::vector<InstructionSet> sets_;
};

}  // namespace
}  // namespace halflife::kernels::cpu

int main(int argc, char** argv) {
  using namespace halflife::kernels::cpu;
  testing::InitGoogleTest(&argc, argv);
  halflife::test::SelectTestsOfSources(argc, argv);
  const std::vector<InstructionSet> sets = UsableInstructionSets();
  GTEST_FLAG_SET(repeat, GTEST_FLAG_GET(repeat) * static_cast<int>(sets.size()));
  testing::UnitTest::GetInstance()->listeners().Append(
      std::make_unique<EveryInstructionSet>(sets).release());
  return RUN_ALL_TESTS();  // True if at least one repetition failed.
}
