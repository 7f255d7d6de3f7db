// Reads the planned fields of a row, layer by layer, without converting or copying more than HDF5
// does: large arrays come one layer at a time, whole rows once for all layers, and narrow columns
// in windows of many rows. Used by the reading thread only. Internal to analysis.
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

  /// Bytes that one layer of a row takes in memory, fields without a layer axis left out.
  std::size_t layer_bytes(const std::vector<bool>& slots) const;
  /// Bytes of a row that all layers share.
  std::size_t shared_bytes(const std::vector<bool>& slots) const;

  /// Has the system read the large arrays of a row that will be sought, as far as all layers share
  /// them.
  void prefetch(std::int64_t row) const;
  /// Goes to a row; what all layers share is read.
  void seek(std::int64_t row);
  /// The planned fields of this row in one recorded layer; arrays with a chunk of their own as late
  /// ones, where they lie in the file as they are.
  LayerValues layer(std::size_t slot);
  /// 1: the row computed the position at this recorded layer (everywhere, without /cache).
  ValidPositions valid(std::size_t slot) const;

 private:
  struct Window {
    std::int64_t first_row = 0;
    PooledBytes bytes;
  };
  /// How a field lies in the file and where its layers are in a row.
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
    OwnedView row;                 // of the row sought
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
  ValidPositions valid_;            // of the row, /steps/valid
  std::vector<LayerRanges> cache_;  // of the row by model layer; empty without /cache
  std::int64_t block_start_ = 0;
};

}  // namespace blockscope
