// Named fault points, so that tests can kill, stall or fail a process exactly where it hurts. Hits
// are of the process, whichever of its ranks comes by, and `rank` is the launcher's number of it.
// Armed by HL_FAULT=point:action:nth[:rank], e.g. HL_FAULT=ckpt.p4.rename:kill:2:0 (main reads it
// once). Actions: kill (SIGKILL), exit (code 3, no destructors), stall (sleeps until killed), throw
// (internal Error), enospc, eio (Error with that errno's words and the code of the call site).
// Compiled out without HALFLIFE_FAULT_POINTS.
//
//   HL_FAULT_POINT("ckpt.p4.rename", ExitCode::kCheckpointIo);
#pragma once

#include <string_view>

#include "core/exit_code.h"

namespace halflife::fault {

// Throws Error kUsage for a malformed spec, or where fault points are compiled out. Empty spec:
// disarm.
void Arm(std::string_view spec, int rank);
void Hit(std::string_view point, ExitCode code);
bool CompiledIn();

}  // namespace halflife::fault

#ifdef HALFLIFE_FAULT_POINTS
#define HL_FAULT_POINT(point, code) ::halflife::fault::Hit((point), (code))
#else
#define HL_FAULT_POINT(point, code) static_cast<void>(0)
#endif
