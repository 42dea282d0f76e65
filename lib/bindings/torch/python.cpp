// The extension tutti._c10d: the only source that uses Python.
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch/c10d_backend.hpp"
#include "torch/c10d_work.hpp"

namespace {

c10::intrusive_ptr<::c10d::Backend> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank,
                                           int size, double timeout, const std::string& group,
                                           const std::string& backend,
                                           const std::string& device_backend) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  return tutti::c10d_door::make_backend(
      {.store = store,
       .rank = rank,
       .size = size,
       .timeout = std::chrono::ceil<std::chrono::milliseconds>(Milliseconds(timeout * 1000)),
       .group = group,
       .backend = backend,
       .device_backend = device_backend});
}

}  // namespace

PYBIND11_MODULE(_c10d, m) {
  namespace py = pybind11;
  m.attr("torch_version") = TORCH_VERSION;
  m.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("group"), py::arg("backend"), py::arg("device_backend"),
        py::call_guard<py::gil_scoped_release>());
  m.def("describe", &tutti::c10d_door::describe, py::arg("backend"));
  m.def("end_with_python", &tutti::c10d_door::end_with_python,
        py::call_guard<py::gil_scoped_release>());
}
