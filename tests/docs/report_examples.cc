// The examples of src/report's headers. The parameters of a function are the variables that its
// example uses.
#include "core/files.h"
#include "report/axis.h"
#include "report/evaluation.h"
#include "report/page.h"
#include "report/plot.h"
#include "report/run_record.h"

namespace halflife::report {

void EvaluationExample() {
#include "examples/report/evaluation.h"
}

void FigureExample(const std::vector<PlotSpec>& plots) {
#include "examples/report/plot.h"
}

void PageExample() {
#include "examples/report/page.h"
}

void RunRecordExample() {
#include "examples/report/run_record.h"
}

void SeriesExample(const Series& points) {
#include "examples/report/axis.h"
}

}  // namespace halflife::report
