// Named fault points, with which tests kill, stall or fail a process at an exact place. Arm one
// with HL_FAULT=point:action:nth[:rank], for example HL_FAULT=ckpt.p4.rename:kill:2:0. main reads
// the variable once.
//
// - nth: the hit that triggers the action, from 1. Hits are counted per process, also when several
//   ranks run as threads in it.
// - rank: the launcher's process rank. Without it, the fault is armed in every process.
// - action: kill (SIGKILL), exit (code 3, no destructors run), stall (sleep until killed), delay (2
// seconds), stop (SIGSTOP, until SIGCONT), throw (an internal Error), enospc or eio (an Error with
//   the text of that errno and the exit code of the call site).
//
// Without HALFLIFE_FAULT_POINTS, fault points are compiled out.
//
//   HL_FAULT_POINT("ckpt.p4.rename", ExitCode::kCheckpointIo);
#pragma once

#include <string_view>

#include "core/exit_code.h"

namespace halflife::fault {

// Arms a fault; an empty spec disarms. Throws Error kUsage if the spec is malformed or fault points
// are compiled out.
void Arm(std::string_view spec, int rank);
void Hit(std::string_view point, ExitCode code);
bool CompiledIn();

}  // namespace halflife::fault

#ifdef HALFLIFE_FAULT_POINTS
#define HL_FAULT_POINT(point, code) ::halflife::fault::Hit((point), (code))
#else
#define HL_FAULT_POINT(point, code) static_cast<void>(0)
#endif
