// Results as HDF5, with a group per metric. An array is a dataset "<array>" (float64, NaN for a
// cell without terms), and its terms are "<array>_terms" (int64). Axes are dimension scales, so
// xarray.open_dataset(path, group="similarity") shows them by name. If two arrays of a metric have
// an axis of the same name with different elements, the later axis is named "<axis>_of_<array>".
#pragma once

#include "analysis/results/analysis_document.h"
#include "decode_record/files/output_file.h"

namespace blockscope {

/// Writes the whole content of `output`. Throws TraceError if that fails.
void write_hdf5(const AnalysisDocument& document, const OutputFile& output);

}  // namespace blockscope
