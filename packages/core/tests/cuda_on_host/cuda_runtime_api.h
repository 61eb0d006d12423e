// Stands in for CUDA's header of this name; see cuda_runtime.h beside it.
#pragma once

#include "cuda_runtime.h"
