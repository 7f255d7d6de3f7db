#include "decode_record/files/array_file.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "decode_record/hdf5/h5.h"

namespace blockscope {
namespace {

/// "/similarity/layer" -> "layer".
std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void write_attributes(const h5::File& file, const std::string& path,
                      const std::vector<ArrayAttribute>& attributes) {
  for (const auto& [name, value] : attributes) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      h5::write_attribute(file, path, name, std::string_view(*text));
    } else {
      h5::write_attribute(file, path, name, std::get<std::int64_t>(value));
    }
  }
}

}  // namespace

class ArrayFile::Impl {
 public:
  explicit Impl(const OutputFile& output) : file_(h5::create_file(output.temporary())) {
    file_.path = output.path();  // the name in messages
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    // After a failed write, closing would write the same data to the full disk and fail again.
    for (auto& [path, axis] : axes_) axis.handle.abandon();
    file_.handle.abandon();
  }

  const h5::File& file() const { return file_; }

  void add_axis(const std::string& path, h5::Dataset scale) {
    h5::make_scale(scale, last_part(path));
    axes_.emplace(path, std::move(scale));
  }

  void add_array(const std::string& path, h5::Element element, const std::vector<std::string>& axes,
                 const void* values, const std::vector<ArrayAttribute>& attributes) {
    std::vector<hsize_t> extent;
    for (const std::string& axis : axes) extent.push_back(axes_.at(axis).extent.at(0));
    {
      const h5::Dataset array = write(path, element, extent, values);
      for (std::size_t i = 0; i < axes.size(); ++i) {
        h5::attach_scale(array, axes_.at(axes[i]), static_cast<unsigned>(i));
      }
    }
    write_attributes(file_, path, attributes);
  }

  h5::Dataset write(const std::string& path, h5::Element element,
                    const std::vector<hsize_t>& extent, const void* values) const {
    h5::Dataset dataset = h5::create_dataset(file_, path, {element, extent, {}, 0});
    const bool empty = std::ranges::find(extent, hsize_t{0}) != extent.end();
    const std::vector<hsize_t> start(extent.size(), 0);
    if (!empty) h5::write(dataset, start, extent, values);
    return dataset;
  }

  void close() {
    axes_.clear();
    h5::close(file_);
  }

 private:
  h5::File file_;
  std::map<std::string, h5::Dataset> axes_;
};

ArrayFile::ArrayFile(const OutputFile& output) : impl_(std::make_unique<Impl>(output)) {}
ArrayFile::~ArrayFile() = default;

void ArrayFile::add_group(const std::string& path, const std::vector<ArrayAttribute>& attributes) {
  if (path != "/") h5::create_group(impl_->file(), path);
  write_attributes(impl_->file(), path, attributes);
}

void ArrayFile::add_axis(const std::string& path, std::span<const double> coordinates) {
  impl_->add_axis(path,
                  impl_->write(path, h5::Element::f64, {coordinates.size()}, coordinates.data()));
}

void ArrayFile::add_axis(const std::string& path, std::span<const std::string> labels) {
  impl_->add_axis(path, h5::write_strings(impl_->file(), path, labels));
}

void ArrayFile::add_array(const std::string& path, const std::vector<std::string>& axes,
                          std::span<const double> values,
                          const std::vector<ArrayAttribute>& attributes) {
  impl_->add_array(path, h5::Element::f64, axes, values.data(), attributes);
}

void ArrayFile::add_array(const std::string& path, const std::vector<std::string>& axes,
                          std::span<const std::int64_t> values,
                          const std::vector<ArrayAttribute>& attributes) {
  impl_->add_array(path, h5::Element::i64, axes, values.data(), attributes);
}

void ArrayFile::close() { impl_->close(); }

}  // namespace blockscope
