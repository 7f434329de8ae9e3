// The instruction sets that CPU kernels are compiled for, and the one of them that this process
// uses: the widest that the machine runs, unless the user asks for a narrower one (to see what
// another machine would do, or to get its bits).
//
//   UseInstructionSetOfEnvironment();                   // main, once, before there are threads
//   if (InstructionSetInUse() == InstructionSet::kAvx512) ...
//
// LibTorch and the libraries below it choose for themselves; each has a variable of its own.
#pragma once

#include <string_view>
#include <vector>

// What each set lets a compiler use, as an argument of the attribute `target`. Lists of features
// and no `arch=`: GCC inlines no function that is compiled for plain x86-64, such as std::bit_cast,
// into one of another architecture.
#define HL_TARGET_AVX2 "avx2,fma,bmi,bmi2"
#define HL_TARGET_AVX512 "avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl"

namespace halflife::kernels::cpu {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// As messages call it: "AVX-512".
const char* NameOf(InstructionSet set);
// Those that this machine runs, the widest first; kBaseline, which any machine runs, is the last.
std::vector<InstructionSet> UsableInstructionSets();

InstructionSet InstructionSetInUse();
// Whether the processor is AMD's, on which the libraries below LibTorch do not use all of it.
bool IsAmd();
// Not while kernels run. One of UsableInstructionSets().
void UseInstructionSet(InstructionSet set);

// What a word asks for on a machine that runs all sets up to `widest`: avx512, avx2, baseline, or
// nothing for the widest. Any other word is an error of usage, a set which is wider one of the
// environment.
InstructionSet ChooseInstructionSet(std::string_view word, InstructionSet widest);
// By the word in HALFLIFE_CPU_ISA.
void UseInstructionSetOfEnvironment();

}  // namespace halflife::kernels::cpu
