// Everything at once.
#pragma once

#include "penstock/convert.h"
#include "penstock/dtype.h"
#include "penstock/error.h"
#include "penstock/flashpack.h"
#include "penstock/measure.h"
#include "penstock/memory.h"
#include "penstock/options.h"
#include "penstock/reader.h"
#include "penstock/tensor.h"
#include "penstock/version.h"
#include "penstock/writer.h"
