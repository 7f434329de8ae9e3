// A collective whose ranks share one address space: what LocalWorld does once every rank has
// arrived, and what tests compare the others against.
#pragma once

#include <span>
#include <string>

#include "dist/request.h"

namespace halflife::dist {

// Requests by rank, matching by Difference(). Empty when the ranks' sends and receives pair up,
// else what does not.
std::string PairingFault(std::span<const Request> requests);
void ExecuteOnHost(std::span<const Request> requests);

}  // namespace halflife::dist
