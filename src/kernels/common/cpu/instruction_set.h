// The instruction sets that CPU kernels are compiled for, and the one that this process uses. The
// default is the widest that the machine supports. A user can request a narrower one, to reproduce
// the behaviour or the bits of another machine.
//
//   UseInstructionSetOfEnvironment();                   // main, once, before there are threads
//   if (InstructionSetInUse() == InstructionSet::kAvx512) ...
//
// LibTorch and the libraries below it choose their instruction set independently; each has its own
// environment variable.
#pragma once

#include <string_view>
#include <vector>

// The features of each set, as arguments of the attribute `target`. They are lists of features
// without `arch=`, because GCC does not inline functions compiled for plain x86-64, such as
// std::bit_cast, into functions of another architecture.
#define HL_TARGET_AVX2 "avx2,fma,bmi,bmi2"
#define HL_TARGET_AVX512 "avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl"

// Declares, in the namespaces of all instruction sets, what a file X_isa.cc defines once per
// instruction set (isa_target.h). Use both macros in namespace halflife::kernels::cpu.
// HL_FOR_INSTRUCTION_SET_IN_USE(name) is the constant `name` of the instruction set in use.
#define HL_PER_INSTRUCTION_SET(...) \
  namespace baseline {              \
  __VA_ARGS__                       \
  }                                 \
  namespace avx2 {                  \
  __VA_ARGS__                       \
  }                                 \
  namespace avx512 {                \
  __VA_ARGS__                       \
  }
#define HL_FOR_INSTRUCTION_SET_IN_USE(name) \
  ForInstructionSetInUse(baseline::name, avx2::name, avx512::name)

namespace halflife::kernels::cpu {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// Returns the name used in messages, such as "AVX-512".
const char* NameOf(InstructionSet set);
// Returns the sets that this machine supports, widest first. The last is kBaseline, which every
// machine supports.
std::vector<InstructionSet> UsableInstructionSets();

InstructionSet InstructionSetInUse();
template <typename T>
const T& ForInstructionSetInUse(const T& baseline, const T& avx2, const T& avx512) {
  const InstructionSet set = InstructionSetInUse();
  if (set == InstructionSet::kAvx512) return avx512;
  return set == InstructionSet::kAvx2 ? avx2 : baseline;
}
// Returns true if the processor is made by AMD. The libraries below LibTorch do not use all
// features of these.
bool IsAmd();
// Selects one of UsableInstructionSets(). Must not be called while kernels run.
void UseInstructionSet(InstructionSet set);

// Returns the set that `word` requests on a machine that supports all sets up to `widest`: avx512,
// avx2, baseline, or an empty word for the widest. Any other word is a usage error; a set that is
// wider than the machine's is an environment error.
InstructionSet ChooseInstructionSet(std::string_view word, InstructionSet widest);
// Selects the set that HALFLIFE_CPU_ISA requests.
void UseInstructionSetOfEnvironment();

}  // namespace halflife::kernels::cpu
