// Determines the members of a group that Communicator::Split creates. Threads and processes share
// this rule.
#pragma once

#include <span>
#include <vector>

namespace halflife::dist {

// The arguments of one rank of the parent.
struct SplitPlace {
  int color = -1;  // negative: member of no group
  int key = 0;
  int rank = 0;  // in the parent
};

// `all` has one entry per rank, in any order. Returns the indices in `all` of a color's members,
// sorted by (key, rank), or nothing for a negative color.
std::vector<int> MembersOf(std::span<const SplitPlace> all, int color);

// The index of `member` in `members`; 0 if it is not a member.
int IndexOf(std::span<const int> members, int member);

}  // namespace halflife::dist
