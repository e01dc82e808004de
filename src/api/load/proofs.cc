#include "api/load/proofs.h"

#include <algorithm>
#include <system_error>

#include "api/files/file_bytes.h"
#include "base/error.h"
#include "format/checksums.h"
#include "format/torch_file.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// Those with a checksum: 0 says that none was stored. `any`: there are some, though maybe of what is deflated, which is
// checked where it is unpacked.
std::vector<zip::Record> checked_records(const Reader::State& state, std::uint32_t file, bool& any) {
  std::vector<zip::Record> records;
  if (state.unpacked[file]) {
    for (const PackedBytes& part : state.unpacked[file]->parts()) {
      records.push_back({part.name, part.offset, part.offset, part.nbytes, part.crc32, part.nbytes});
    }
  } else if (state.infos[file].format == torch::kZipFormat) {
    records = zip::parse(FileBytes(*state.files[file]));
    for (zip::Record& record : records) record.name = "record " + in_quotes(record.name);
  }
  std::erase_if(records, [](const zip::Record& record) { return record.crc32 == 0 || record.nbytes == 0; });
  any = !records.empty();
  std::erase_if(records, [](const zip::Record& record) { return record.deflated; });
  return records;
}

bool is_hex(std::string_view text) noexcept {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// What is there and was asked for. `stored`: whether the file has checksums of its own.
FileProof choose(const File& file, const fs::path& path, Verify wanted, bool stored) {
  FileProof proof;
  if (wanted == Verify::kOff) return proof;
  const bool any = wanted == Verify::kAny || wanted == Verify::kIfAny;
  if (wanted != Verify::kStored) proof.seal = find_seal(file);
  if (wanted == Verify::kSha256 || (any && !proof.seal && !stored)) {
    proof.digest = find_blob_name(path);
    if (!proof.digest && proof.seal && !proof.seal->seal.sha256.empty()) {
      proof.digest = Digest{Digest::Kind::kSha256, proof.seal->seal.sha256, "its seal says"};
    }
  }
  if (proof.digest) {
    proof.against = Against::kDigest;
  } else if (proof.seal && wanted != Verify::kSha256) {
    proof.against = Against::kSeal;
  } else if (stored && (any || wanted == Verify::kStored)) {
    proof.against = Against::kStored;
  }
  return proof;
}

}  // namespace

StoredChecksums::StoredChecksums(const Reader::State& state)
    : tensors(state.expected_checksums()), any(state.files.size()) {
  for (std::uint32_t file = 0; file < state.files.size(); ++file) {
    bool has_records = false;
    records.push_back(checked_records(state, file, has_records));
    any[file] = has_records || (!state.partial[file] && state.infos[file].metadata.contains(std::string(kChecksumKey)));
  }
}

std::shared_ptr<const FoundSeal> find_seal(const File& file) {
  std::error_code missing;
  const fs::path path = seal_file_name(file.path());
  if (!fs::exists(fs::symlink_status(path, missing))) return nullptr;
  const File text = File::open(path);
  auto found = std::make_shared<FoundSeal>(
      FoundSeal{parse_seal(FileBytes(text)), path.native(), text.identity().modified_nanoseconds});
  if (found->seal.size != file.size()) {
    throw_format(file.path(),
                 "has {} bytes, and had {} when {} was made: it was changed or cut off; `penstock seal` "
                 "makes a new seal",
                 file.size(), found->seal.size, path.filename().native());
  }
  return found;
}

std::string changed_hint(const File& file, const FoundSeal& seal) {
  if (file.identity().modified_nanoseconds <= seal.modified_nanoseconds) return {};
  return "; the file was written to after it was sealed: if that was meant, `penstock seal` makes a new seal";
}

std::optional<Digest> find_blob_name(const fs::path& path) {
  constexpr std::size_t kSha256Digits = 64;
  constexpr std::size_t kSha1Digits = 40;
  std::error_code no_link;
  const fs::path target = fs::read_symlink(path, no_link);
  if (no_link || target.parent_path().filename() != "blobs") return std::nullopt;
  const std::string name = target.filename().native();
  if (!is_hex(name) || (name.size() != kSha256Digits && name.size() != kSha1Digits)) return std::nullopt;
  const auto kind = name.size() == kSha256Digits ? Digest::Kind::kSha256 : Digest::Kind::kGitBlob;
  return Digest{kind, name, "the blob that it is a link to is called"};
}

std::string_view to_text(Against against) noexcept {
  switch (against) {
    case Against::kSeal:
      return "seal";
    case Against::kStored:
      return "stored";
    case Against::kDigest:
      return "sha256";
    case Against::kNothing:
      break;
  }
  return "";
}

Proofs::Proofs(const Reader::State& state, Verify verify) : wanted(verify), stored(state) {
  for (std::uint32_t file = 0; file < state.files.size(); ++file) {
    if (state.unpacked[file]) {
      files.push_back(files.back());
    } else {
      const bool has_packed = file + 1 < state.files.size() && state.unpacked[file + 1];
      const bool has_stored = stored.any[file] || (has_packed && stored.any[file + 1]);
      files.push_back(choose(*state.files[file], state.infos[file].path, verify, has_stored));
    }
  }
  for (const auto& index : state.indexes) indexes.push_back(choose(*index, index->path(), verify, false));
}

void Proofs::refuse(const File& file) const {
  const std::string_view missing =
      wanted == Verify::kSeal     ? "has no seal to be verified against"
      : wanted == Verify::kStored ? "carries no checksums to be verified against"
      : wanted == Verify::kSha256 ? "has no SHA-256 to be verified against: no seal with one, and no name in a cache"
                                  : "can't be verified: it carries no checksums, and has no seal";
  throw_format(file.path(), "{}; `penstock seal{}` makes a seal", missing,
               wanted == Verify::kSha256 ? " --sha256" : "");
}

}  // namespace penstock
