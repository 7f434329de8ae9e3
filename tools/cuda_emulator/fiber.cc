// Switches between fibers: assembly on x86-64 (about 10 ns per switch), ucontext on other machines
// (two system calls, about 260 ns).
#include <cstdint>

#include "tools/cuda_emulator/internal.h"

#if HL_EMU_ASM_SWITCH
// `jmp *%rcx` replaces `ret`, because the return predictor would predict the caller on the other
// stack.
asm(R"(
.text
.globl hl_emu_switch_stack
.type hl_emu_switch_stack, @function
hl_emu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size hl_emu_switch_stack, .-hl_emu_switch_stack
)");
extern "C" void hl_emu_switch_stack(void** save, void* load);
#endif

#if HL_EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace halflife::kernels::emu {

size_t StackBytes() {
  // Pages that are never touched cost no memory. AddressSanitizer's stack frames are several times
  // larger.
  return HL_EMU_ASAN ? size_t{512} << 10 : size_t{256} << 10;
}

void PrepareContext(Context& context, void (*entry)(), int stagger) {
#if HL_EMU_ASM_SWITCH
  // Stacks start at different multiples of 64 bytes. Equally aligned stacks would compete for the
  // same cache sets.
  auto top = reinterpret_cast<uintptr_t>(context.stack_bottom) + context.stack_bytes;
  top = (top - 64 - static_cast<uintptr_t>((stagger * 320) & 4080)) & ~uintptr_t{15};
  auto* slots = reinterpret_cast<void**>(top);
  *--slots = nullptr;  // in place of a return address: the stack looks as after a call
  *--slots = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--slots = nullptr;
  context.stack_pointer = slots;
#else
  (void)stagger;
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = context.stack_bottom;
  context.context.uc_stack.ss_size = context.stack_bytes;
  context.context.uc_link = nullptr;
  makecontext(&context.context, entry, 0);
#endif
}

void EnterContext() {
#if HL_EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

void SwitchContext(Context& from, Context& to, [[maybe_unused]] bool from_ends) {
#if HL_EMU_ASAN
  __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.asan_fake, to.stack_bottom,
                                 to.stack_bytes);
#endif
#if HL_EMU_TSAN
  __tsan_switch_to_fiber(to.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#if HL_EMU_ASM_SWITCH
  hl_emu_switch_stack(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.context, &to.context);
#endif
#if HL_EMU_ASAN
  __sanitizer_finish_switch_fiber(from.asan_fake, nullptr, nullptr);
#endif
}

}  // namespace halflife::kernels::emu
