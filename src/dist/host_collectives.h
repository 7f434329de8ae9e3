// Executes a collective whose ranks share one address space. LocalWorld uses it once every rank has
// arrived, and tests compare the other communicators against it.
#pragma once

#include <span>
#include <string>

#include "dist/request.h"

namespace halflife::dist {

// `requests` are sorted by rank and match by Difference(). Returns an empty string if all sends and
// receives pair up, otherwise a description of the first that does not.
std::string PairingFault(std::span<const Request> requests);
void ExecuteOnHost(std::span<const Request> requests);

}  // namespace halflife::dist
