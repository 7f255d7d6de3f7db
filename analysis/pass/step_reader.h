// Reads the planned fields of a row, layer by layer, and adds no conversion or copy to those of
// HDF5. It reads large arrays one layer at a time, whole rows once for all layers, and narrow
// columns in windows of many rows. Only the reading thread uses it. Internal to analysis.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "analysis/pass/buffer_pool.h"
#include "analysis/pass/step_values.h"

namespace blockscope {

class StepReader {
 public:
  /// Throws std::logic_error for a field without a row axis or of 64-bit integers.
  StepReader(const TraceReader& trace, const FieldPlan& plan, BufferPool& pool);

  /// Bytes in memory of one layer of a row, without the fields that have no layer axis.
  std::size_t layer_bytes(const std::vector<bool>& slots) const;
  /// Bytes of a row that all layers share.
  std::size_t shared_bytes(const std::vector<bool>& slots) const;

  /// Asks the system to load the large arrays that all layers share, for a later seek() to this
  /// row.
  void prefetch(std::int64_t row) const;
  /// Goes to a row, and reads the values that all layers share.
  void seek(std::int64_t row);
  /// The planned fields of this row in one recorded layer. An array with its own chunk, stored
  /// unchanged in the file, becomes a late one.
  LayerValues layer(std::size_t slot);
  /// 1: the row computed the position at this recorded layer (without /cache: at every layer).
  ValidPositions valid(std::size_t slot) const;

 private:
  struct Window {
    std::int64_t first_row = 0;
    PooledBytes bytes;
  };
  /// Layout of a field in the file, and the places of its layers in a row.
  struct Source {
    Field field = Field::count;
    ViewType type = ViewType::f32;
    std::size_t element_bytes = 4;
    std::size_t row_bytes = 0;
    bool has_layers = false;
    bool chunk_per_layer = false;
    std::size_t outer = 1;  // product of the axes before the layer axis
    std::size_t layers = 1;
    std::size_t part_bytes = 0;    // of one layer within one outer index
    std::int64_t window_rows = 0;  // > 0: read in windows
    std::list<Window> windows;     // most recent first
    OwnedView row;                 // of the current row
  };

  Source make_source(Field field) const;
  void read_valid();
  OwnedView read_row(Source& source, std::int64_t row);
  OwnedView layer_of_row(const Source& source, std::size_t layer);

  const TraceReader& trace_;
  BufferPool& pool_;
  std::vector<Source> sources_;  // [slot], then /steps/valid
  std::size_t max_windows_bytes_ = 0;
  std::int64_t row_ = -1;
  ValidPositions valid_;            // /steps/valid of the row
  std::vector<LayerRanges> cache_;  // /cache of the row, by model layer; empty without /cache
  std::int64_t block_start_ = 0;
};

}  // namespace blockscope
