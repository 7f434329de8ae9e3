// halflife.read_metrics: the curves of a run.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "report/run_record.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace halflife::python {

void DeclareRun(nb::module_& module) {
  module.def(
      "read_metrics",
      [](const std::filesystem::path& path) {
        const report::RunRecord run = report::ReadRun(path);
        nb::dict metrics;
        for (const auto& [name, series] : run.metrics) {
          std::vector<int64_t> steps;
          std::vector<double> values;
          for (const report::Point& point : series) {
            steps.push_back(static_cast<int64_t>(point.x));
            values.push_back(point.y);
          }
          metrics[name.c_str()] =
              nb::make_tuple(ToNumpy(std::move(steps)), ToNumpy(std::move(values)));
        }
        return metrics;
      },
      "run"_a,
      nb::sig("def read_metrics(run: str | os.PathLike) -> dict[str, tuple[numpy.ndarray, "
              "numpy.ndarray]]"),
      "Returns (steps [N] int64, values [N] float64) for each metric of a run, such as 'loss', "
      "also while it trains. Steps that a resumed run repeated have the values of the last "
      "attempt.");
}

}  // namespace halflife::python
