// Keeps a trace inside its file. Every opening of an object of a trace calls these checks.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "decode_record/hdf5/h5.h"
#include "decode_record/hdf5/h5_check.h"
#include "decode_record/json/json_text.h"

namespace blockscope::h5 {
namespace {

std::string kind_of(H5L_type_t type) {
  if (type == H5L_TYPE_SOFT) return "a soft link";
  return type == H5L_TYPE_EXTERNAL ? "a link to another file" : "a link of an unknown kind";
}

[[noreturn]] void refuse(std::string_view where, std::string_view expected, std::string_view got) {
  throw CorruptTrace(fmt::format(
      "{}: expected {}, got {}. HINT: Blockscope writes no such file. Outside a trace it reads "
      "only the traces that it was merged from.",
      where, expected, got));
}

/// Only a merge refers to other files. It names them relative to its own folder.
void check_part(const File& file, const std::string& part, const std::string& where) {
  const std::filesystem::path path(part);
  const bool known = std::ranges::count(file.merged_of, valid_utf8(path.filename().string())) > 0;
  if (known && path.is_relative()) return;
  refuse(where, "values in this file, or in a trace that it was merged from",
         fmt::format("a reference to '{}'", part));
}

}  // namespace

bool exists(const File& file, const std::string& path) {
  const LibraryGuard guard;
  silence();
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    if (H5Lexists(file.handle.get(), prefix.c_str(), H5P_DEFAULT) <= 0) {
      H5Eclear2(H5E_DEFAULT);
      return false;
    }
    if (slash == std::string::npos) return true;
  }
}

void check_links(const File& file, const std::string& path) {
  for (std::size_t slash = path.find('/', 1); path != "/"; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    H5L_info_t info = {};
    if (H5Lget_info(file.handle.get(), prefix.c_str(), &info, H5P_DEFAULT) < 0) {
      H5Eclear2(H5E_DEFAULT);
      return;
    }
    if (info.type != H5L_TYPE_HARD) {
      refuse(object_name(file, prefix), "an object of this file", kind_of(info.type));
    }
    if (slash == std::string::npos) return;
  }
}

void check_storage(const File& file, const H5Plist& plist, const std::string& where) {
  if (H5Pget_layout(plist.get()) == H5D_VIRTUAL) {
    for (const std::string& part : part_files(plist, where)) check_part(file, part, where);
  }
  const int files = H5Pget_external_count(plist.get());
  check(files, where, "read the storage");
  if (files > 0) refuse(where, "values in this file", "external storage in another file");
  const int filters = H5Pget_nfilters(plist.get());
  check(filters, where, "read the filters");
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0;
    std::size_t values = 0;
    unsigned configuration = 0;
    const H5Z_filter_t filter = H5Pget_filter2(plist.get(), static_cast<unsigned>(i), &flags,
                                               &values, nullptr, 0, nullptr, &configuration);
    check(filter, where, "read the filters");
    if (filter < H5Z_FILTER_RESERVED) continue;
    refuse(where, "deflated or plain values",
           fmt::format("filter {}, which HDF5 would load from a plugin", filter));
  }
}

void check_inside(const File& file, const std::string& path) {
  const LibraryGuard guard;
  silence();
  check_links(file, path);
  if (!exists(file, path)) return;
  const std::string where = object_name(file, path);
  const H5Dataset dataset(
      check_id(H5Dopen2(file.handle.get(), path.c_str(), H5P_DEFAULT), where, "open the dataset"));
  const H5Plist plist(check_id(H5Dget_create_plist(dataset.get()), where, "read the storage"));
  check_storage(file, plist, where);
}

}  // namespace blockscope::h5
