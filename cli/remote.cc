#include "remote.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "penstock/format.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr std::string_view kDigits = "0123456789";

bool consists_of(std::string_view text, const std::string& characters) {
  return text.find_first_not_of(characters) == std::string_view::npos;
}

// Also a dangling link: the name is taken.
bool is_there(std::string_view path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found;
}

// Of "owner/model/file" or "owner/model".
std::string downloading(std::string_view name) {
  const std::size_t slash = name.find('/');
  const std::string_view repository = slash == name.npos ? name : name.substr(0, name.find('/', slash + 1));
  const std::string_view model = repository.substr(slash == name.npos ? 0 : slash + 1);
  return fmt::format("hf download {} --local-dir {}", repository, model);
}

std::string copying(std::string_view scheme, std::string_view rest) {
  if (scheme == "s3") return fmt::format("to copy it: aws s3 cp s3://{} .", rest);
  if (scheme == "gs") return fmt::format("to copy it: gcloud storage cp gs://{} .", rest);
  if (scheme == "http" || scheme == "https") return fmt::format("to copy it: curl -LO '{}://{}'", scheme, rest);
  if (scheme == "hf") return "to copy it: " + downloading(rest);
  return "copy it first";
}

std::string url_hint(std::string_view path, PathUse use) {
  const std::size_t colon = path.find(":/");
  if (colon == path.npos || colon < 2) return "";
  const std::string_view scheme = path.substr(0, colon);
  if (!consists_of(scheme, fmt::format("{}{}", kLetters, kDigits)) || is_there(path.substr(0, colon + 1))) return "";
  const std::string_view rest = path.substr(std::min(path.find_first_not_of('/', colon + 1), path.size()));
  if (rest.empty()) return "";
  if (scheme == "file") return fmt::format("expected a path, not a URL; give '/{}'", rest);
  const std::string how = use == PathUse::kRead ? copying(scheme, rest) : "write to a local file and copy that";
  return "only local paths are read and written; " + how;
}

// "owner/model" where there is no folder "owner", or a model of the hub's first days: "gpt2".
bool looks_like_hub_name(std::string_view path) {
  const std::size_t slash = path.find('/');
  const std::string_view owner = path.substr(0, slash);
  const std::string_view model = slash == path.npos ? owner : path.substr(slash + 1);
  if (owner.empty() || model.empty() || owner.front() == '.' || owner.front() == '-' || is_there(owner)) return false;
  if (slash == path.npos && model.find('.') != model.npos) return false;  // a file with a suffix
  const std::string allowed = fmt::format("{}{}._-", kLetters, kDigits);
  return consists_of(owner, allowed) && consists_of(model, allowed) && !format_for_suffix(path) &&
         !model.ends_with(".json");
}

}  // namespace

std::string remote_hint(std::string_view path, PathUse use) {
  if (std::string hint = url_hint(path, use); !hint.empty()) return hint;
  if (use == PathUse::kWritten || !looks_like_hub_name(path)) return "";
  return "only local paths are read: for a model of the Hugging Face hub, " + downloading(path);
}

}  // namespace penstock::cli
