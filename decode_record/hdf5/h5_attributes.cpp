// Attributes, dimension scales, groups and texts of h5.h.
#include <fmt/format.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <cstring>

#include "decode_record/hdf5/h5.h"
#include "decode_record/hdf5/h5_check.h"

namespace blockscope::h5 {
namespace {

H5Attribute open_attribute(const File& file, const std::string& path, const std::string& name) {
  silence();
  check_links(file, path);
  if (H5Aexists_by_name(file.handle.get(), path.c_str(), name.c_str(), H5P_DEFAULT) <= 0) {
    H5Eclear2(H5E_DEFAULT);
    return {};
  }
  H5Attribute attribute(
      H5Aopen_by_name(file.handle.get(), path.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT));
  H5Eclear2(H5E_DEFAULT);
  return attribute;
}

void write_raw_attribute(const File& file, const std::string& path, const std::string& name,
                         hid_t type, const void* value) {
  const std::string where = object_name(file, path);
  const H5Space space(check_id(H5Screate(H5S_SCALAR), where, "create attribute " + name));
  const H5Attribute attribute(
      check_id(H5Acreate_by_name(file.handle.get(), path.c_str(), name.c_str(), type, space.get(),
                                 H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
               where, "create attribute " + name));
  check(H5Awrite(attribute.get(), type, value), where, "write attribute " + name);
}

template <typename Value>
std::optional<Value> read_number(const File& file, const std::string& path, const std::string& name,
                                 H5T_class_t wanted, hid_t memory_type) {
  const H5Attribute attribute = open_attribute(file, path, name);
  if (!attribute) return std::nullopt;
  const H5Type type(H5Aget_type(attribute.get()));
  const H5Space space(H5Aget_space(attribute.get()));
  Value value{};
  const bool good = H5Tget_class(type.get()) == wanted &&
                    H5Sget_simple_extent_npoints(space.get()) == 1 &&
                    H5Aread(attribute.get(), memory_type, &value) >= 0;
  H5Eclear2(H5E_DEFAULT);
  return good ? std::optional<Value>(value) : std::nullopt;
}

}  // namespace

void write_attribute(const File& file, const std::string& path, const std::string& name,
                     std::string_view value) {
  const LibraryGuard guard;
  const H5Type type(H5Tcopy(H5T_C_S1));
  check(H5Tset_size(type.get(), std::max<std::size_t>(value.size(), 1)), file.path, "string type");
  check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), file.path, "string type");
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), file.path, "string type");
  const std::string padded = value.empty() ? std::string(1, '\0') : std::string(value);
  write_raw_attribute(file, path, name, type.get(), padded.data());
}

void write_attribute(const File& file, const std::string& path, const std::string& name,
                     std::int64_t value) {
  const LibraryGuard guard;
  write_raw_attribute(file, path, name, H5T_STD_I64LE, &value);
}

void write_attribute(const File& file, const std::string& path, const std::string& name,
                     double value) {
  const LibraryGuard guard;
  write_raw_attribute(file, path, name, H5T_IEEE_F64LE, &value);
}

std::optional<std::string> read_string_attribute(const File& file, const std::string& path,
                                                 const std::string& name) {
  const LibraryGuard guard;
  const H5Attribute attribute = open_attribute(file, path, name);
  if (!attribute) return std::nullopt;
  const H5Type type(H5Aget_type(attribute.get()));
  const H5Space space(H5Aget_space(attribute.get()));
  const bool fixed = H5Tget_class(type.get()) == H5T_STRING &&
                     H5Tis_variable_str(type.get()) == 0 &&
                     H5Sget_simple_extent_npoints(space.get()) == 1;
  // Our string attributes are short; a huge size comes from a damaged file.
  const std::size_t size = fixed ? H5Tget_size(type.get()) : 0;
  if (!fixed || size == 0 || size > 65536) return std::nullopt;
  std::string value(size, '\0');
  if (H5Aread(attribute.get(), type.get(), value.data()) < 0) return std::nullopt;
  value.resize(std::strlen(value.c_str()));
  return value;
}

std::optional<std::int64_t> read_int_attribute(const File& file, const std::string& path,
                                               const std::string& name) {
  const LibraryGuard guard;
  return read_number<std::int64_t>(file, path, name, H5T_INTEGER, H5T_NATIVE_INT64);
}

std::optional<double> read_double_attribute(const File& file, const std::string& path,
                                            const std::string& name) {
  const LibraryGuard guard;
  return read_number<double>(file, path, name, H5T_FLOAT, H5T_NATIVE_DOUBLE);
}

void create_group(const File& file, const std::string& path) {
  const LibraryGuard guard;
  if (exists(file, path)) return;
  const std::string where = object_name(file, path);
  const H5Plist links(H5Pcreate(H5P_LINK_CREATE));
  check(H5Pset_create_intermediate_group(links.get(), 1), where, "create groups");
  const H5Group group(
      check_id(H5Gcreate2(file.handle.get(), path.c_str(), links.get(), H5P_DEFAULT, H5P_DEFAULT),
               where, "create the group"));
}

Dataset write_strings(const File& file, const std::string& path,
                      std::span<const std::string> values) {
  const LibraryGuard guard;
  silence();
  const std::string where = object_name(file, path);
  const H5Type type(H5Tcopy(H5T_C_S1));
  check(H5Tset_size(type.get(), H5T_VARIABLE), where, "string type");
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), where, "string type");
  const hsize_t count = values.size();
  const H5Space space(check_id(H5Screate_simple(1, &count, nullptr), where, "create"));
  H5Dataset handle(check_id(H5Dcreate2(file.handle.get(), path.c_str(), type.get(), space.get(),
                                       H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                            where, "create"));
  std::vector<const char*> texts;
  for (const std::string& value : values) texts.push_back(value.c_str());
  if (count > 0) {
    check(H5Dwrite(handle.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, texts.data()), where,
          "write");
  }
  return Dataset{std::move(handle), where, Element::u8, {count}, {}, false, {}, {}, {}};
}

void make_scale(const Dataset& scale, const std::string& name) {
  const LibraryGuard guard;
  check(H5DSset_scale(scale.handle.get(), name.c_str()), scale.name, "make a dimension scale");
}

void attach_scale(const Dataset& dataset, const Dataset& scale, unsigned axis) {
  const LibraryGuard guard;
  check(H5DSattach_scale(dataset.handle.get(), scale.handle.get(), axis), dataset.name,
        "attach the dimension scale " + scale.name);
}

}  // namespace blockscope::h5
