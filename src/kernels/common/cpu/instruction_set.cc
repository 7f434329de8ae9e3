#include "kernels/common/cpu/instruction_set.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "core/error.h"

namespace halflife::kernels::cpu {
namespace {

constexpr const char* kVariable = "HALFLIFE_CPU_ISA";

struct Row {
  InstructionSet set;
  std::string_view word;
  const char* name;
};
// Widest first.
constexpr Row kRows[] = {{InstructionSet::kAvx512, "avx512", "AVX-512"},
                         {InstructionSet::kAvx2, "avx2", "AVX2"},
                         {InstructionSet::kBaseline, "baseline", "baseline"}};

const Row& RowOf(InstructionSet set) {
  return *std::find_if(std::begin(kRows), std::end(kRows),
                       [set](const Row& row) { return row.set == set; });
}

// Tests every feature of HL_TARGET_AVX2 and HL_TARGET_AVX512.
InstructionSet Widest() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();  // this may run before the constructor that initializes CPU detection
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return InstructionSet::kAvx512;
  if (avx2) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

// Process-wide, like the processor's abilities. Every kernel reads it, also in places that no
// context object reaches.
std::atomic<InstructionSet> in_use{Widest()};

}  // namespace

const char* NameOf(InstructionSet set) { return RowOf(set).name; }

std::vector<InstructionSet> UsableInstructionSets() {
  std::vector<InstructionSet> usable;
  for (const Row& row : kRows)
    if (row.set <= Widest()) usable.push_back(row.set);
  return usable;
}

InstructionSet InstructionSetInUse() { return in_use.load(std::memory_order_relaxed); }

bool IsAmd() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

void UseInstructionSet(InstructionSet set) {
  HL_CHECK(set <= Widest(), "this machine does not run ", NameOf(set),
           ". Use one of UsableInstructionSets().");
  in_use.store(set, std::memory_order_relaxed);
}

InstructionSet ChooseInstructionSet(std::string_view word, InstructionSet widest) {
  if (word.empty()) return widest;
  const auto* const row = std::find_if(std::begin(kRows), std::end(kRows),
                                       [word](const Row& r) { return r.word == word; });
  HL_CHECK_AS(ExitCode::kUsage, row != std::end(kRows), kVariable, "=", word,
              " names no instruction set. Use avx512, avx2 or baseline, or unset it.");
  HL_CHECK_AS(ExitCode::kEnvironment, row->set <= widest, "this machine does not run ", row->name,
              ", which ", kVariable, "=", word, " requests. Use ", kVariable, "=",
              RowOf(widest).word, ", or unset it.");
  return row->set;
}

void UseInstructionSetOfEnvironment() {
  const char* const word = std::getenv(kVariable);
  UseInstructionSet(ChooseInstructionSet(word == nullptr ? "" : word, Widest()));
}

}  // namespace halflife::kernels::cpu
