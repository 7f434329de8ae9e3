// The examples of the headers of src/sweep. A function's parameters are what its example takes for
// granted.
#include <functional>

#include "sweep/job_queue.h"
#include "sweep/sweep_config.h"

namespace halflife::sweep {

void ChildProcessesExample() {
#include "examples/sweep/job_queue.h"
}

void SweepConfigExample(const std::function<void(const std::string&)>& Print) {
#include "examples/sweep/sweep_config.h"
}

}  // namespace halflife::sweep
