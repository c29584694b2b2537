#!/bin/sh
# Takes out of an environment what neither the archive nor a sink uses: tests, Arrow's Flight and S3 (the archive has
# its own S3), of botocore all but the queues, the topics and the ways to log in, and what only a debugger reads.
set -eu
cd "$1"
find . -depth -type d -name tests -exec rm -rf {} +
rm -rf pyarrow/include pyarrow/libarrow_flight.* pyarrow/libarrow_python_flight.* pyarrow/_flight.* \
    pyarrow/libarrow_s3.* pyarrow/_s3fs.*
find botocore/data -mindepth 1 -maxdepth 1 -type d \
    ! -name sqs ! -name sns ! -name sts ! -name sso ! -name 'sso-*' ! -name signin -exec rm -rf {} +
find fastavro httptools pyarrow uvloop yaml -name '*.so*' -type f -exec strip --strip-unneeded {} +
