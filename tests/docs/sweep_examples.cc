// The examples of the headers of src/sweep. The parameters of a function are the variables that its
// example uses.
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
