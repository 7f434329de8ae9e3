// Who is in a group that Communicator::Split makes: one rule for threads and processes.
#pragma once

#include <span>
#include <vector>

namespace halflife::dist {

// What one rank of the parent says.
struct SplitPlace {
  int color = -1;  // negative: in no group
  int key = 0;
  int rank = 0;  // in the parent
};

// `all`, one a rank, in any order of ranks. Returns the indices in it of a color's members, in the
// order of (key, rank); none for a negative color.
std::vector<int> MembersOf(std::span<const SplitPlace> all, int color);

// Where `member` stands among `members`; 0 where it does not.
int IndexOf(std::span<const int> members, int member);

}  // namespace halflife::dist
