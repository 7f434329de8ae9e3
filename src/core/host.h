// This machine's name, for messages and records.
#pragma once

#include <string>

namespace halflife {

std::string HostName();  // "unknown" where the system does not tell

}  // namespace halflife
