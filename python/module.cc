// The Python module halflife._core: errors, and the parts of the module.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "core/error.h"
#include "core/log.h"

namespace nb = nanobind;

namespace halflife::python {
namespace {

// Raises halflife.Error with the exit code that the program would have.
void RaiseError(const std::exception_ptr& pointer, void* type) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    nb::object raised = nb::handle(static_cast<PyObject*>(type))(nb::str(error.what()));
    nb::setattr(raised, "exit_code", nb::int_(static_cast<int>(error.code())));
    PyErr_SetObject(static_cast<PyObject*>(type), raised.ptr());
  }
}

}  // namespace
}  // namespace halflife::python

NB_MODULE(_core, module) {
  using namespace halflife;
  log::Init({.console_level = log::Level::kWarn});
  static PyObject* const error =
      PyErr_NewExceptionWithDoc("halflife._core.Error",
                                "An error with its cause and its fix. `exit_code` is the exit code "
                                "of the program `halflife` for the same error.",
                                PyExc_RuntimeError, nullptr);
  module.attr("Error") = nb::borrow(error);
  nb::register_exception_translator(python::RaiseError, error);
  python::DeclareTokenizer(module);
  python::DeclareModel(module);
  python::DeclareDataset(module);
  python::DeclareRun(module);
}
