// Identifies this build in run logs, checkpoints and the handshake of the ranks.
#pragma once

namespace halflife {

struct BuildInfo {
  const char* version;   // version of the project, e.g. "0.1.0"
  const char* git_hash;  // 12 digits; empty if built outside a git checkout
  bool git_dirty;        // tracked files differed from the commit
};
BuildInfo GetBuildInfo();

}  // namespace halflife
