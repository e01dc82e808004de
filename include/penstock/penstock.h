// Everything at once.
#pragma once

#include "penstock/aio.h"
#include "penstock/convert.h"
#include "penstock/doctor.h"
#include "penstock/dtype.h"
#include "penstock/error.h"
#include "penstock/flashpack.h"
#include "penstock/measure.h"
#include "penstock/memory.h"
#include "penstock/options.h"
#include "penstock/parallel.h"
#include "penstock/reader.h"
#include "penstock/stream_file.h"
#include "penstock/tensor.h"
#include "penstock/torch.h"
#include "penstock/version.h"
#include "penstock/writer.h"
