// What the files of the extension module share.
//
// The module hands plain data across: tuples, dicts, and one Memory object per block of memory. It knows no framework;
// penstock/_torch.py and penstock/_numpy.py make tensors of what they get.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fields.h"
#include "gil.h"
#include "penstock/penstock.h"

namespace penstock::python {

namespace nb = nanobind;

// One function per file, called by module.cc.
void bind_errors(nb::module_& module);
void bind_formats(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_options(nb::module_& module);
void bind_reader(nb::module_& module);
void bind_writer(nb::module_& module);
void bind_convert(nb::module_& module);
void bind_measure(nb::module_& module);
void bind_device(nb::module_& module);
void bind_doctor(nb::module_& module);
void bind_aio(nb::module_& module);
void bind_torch(nb::module_& module);

// "F32" and so on, each made once.
nb::str dtype_object(DType dtype);

// What find_dtype takes; throws Error(kArgument), with what there is, for anything else.
DType dtype_from(std::string_view name);
std::optional<DType> dtype_from(const std::optional<std::string>& name);

// The choice that a word stands for; throws Error(kArgument), with the words that there are, for another one.
template <typename Choice>
Choice choice_from(const char* name, std::string_view word) {
  if (const auto choice = from_word<Choice>(word)) return *choice;
  throw Error(ErrorKind::kArgument,
              std::string(name) + " must be one of " + list_words<Choice>() + ", not \"" + std::string(word) + "\"");
}

// A number of bytes: a whole number, or text as parse_size() takes it. Throws Error(kArgument).
std::uint64_t size_from(nb::handle value);

nb::tuple shape_tuple(const Shape& shape);

// (name, dtype, shape, file, offset, nbytes)
nb::tuple info_tuple(const TensorInfo& info);

// A predicate for LoadOptions::select that wants exactly these names; nothing when there is no list.
std::function<bool(const TensorInfo&)> select_names(const std::optional<std::vector<std::string>>& names);

}  // namespace penstock::python
