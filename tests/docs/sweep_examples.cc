// The examples of the headers of src/sweep. A function's parameters are what its example takes for
// granted.
#include <functional>

#include "sweep/child_processes.h"
#include "sweep/sweep_config.h"

namespace halflife::sweep {

void ChildProcessesExample() {
#include "examples/sweep/child_processes.h"
}

void SweepConfigExample(const std::function<void(const std::string&)>& Print) {
#include "examples/sweep/sweep_config.h"
}

}  // namespace halflife::sweep
