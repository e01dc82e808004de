// A shared library that may be there, and the symbols that are wanted of it.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

namespace penstock {

class DynamicLibrary {
 public:
  // The file that $`variable` names, or `soname` as the dynamic loader finds it.
  DynamicLibrary(const char* variable, const char* soname) {
    const char* named = std::getenv(variable);
    name_ = named != nullptr && *named != '\0' ? named : soname;
  }

  // Opens it; false, with the reason, where that fails. It is never closed: drivers don't take that well.
  bool open(std::string& why_not) {
    handle_ = ::dlopen(name_.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle_ != nullptr) return true;
    const char* problem = ::dlerror();
    why_not = problem != nullptr ? problem : name_ + " can't be opened";
    return false;
  }

  bool is_loaded() const {
    void* const handle = ::dlopen(name_.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (handle != nullptr) ::dlclose(handle);
    return handle != nullptr;
  }

  // Null, with the reason, where the library lacks the symbol.
  template <typename Function>
  bool find(const char* symbol, Function& function, std::string& why_not) const {
    function = reinterpret_cast<Function>(::dlsym(handle_, symbol));
    if (function == nullptr) why_not = fmt::format("{} has no {}", name_, symbol);
    return function != nullptr;
  }

  const std::string& name() const noexcept { return name_; }

 private:
  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace penstock
