// How this process treats the memory of its heap.
#pragma once

namespace halflife {

// For a process that allocates the same large tensors step after step. Does nothing where the
// allocator is not glibc's.
//
// From now on freed memory stays with the process for its next allocation. By default glibc hands
// whatever is above 32 MiB back to the kernel, and each step then takes a page fault for every 4
// KiB of its tensors: a quarter of the time of decay attention with rows of 1,024 columns. Resident
// memory stays near its peak.
//
// And the heap lies in pages of 2 MiB where the kernel gives them on request (transparent_hugepage
// "madvise"; under "always" it gives them unasked): a head's rows are scattered over as many pages
// of 4 KiB as all heads' rows fill, and translating their addresses takes a tenth to a sixth of the
// time of decay attention with 8 heads. They are requested in advance, for as many addresses as
// three quarters of the machine's memory; those that are never written to take no memory. Where
// addresses are limited or counted as memory (ulimit -v or -d, vm.overcommit_memory 2), or where
// malloc writes to what it gives out (MALLOC_PERTURB_), pages stay as they are.
void PrepareHeap();

}  // namespace halflife
