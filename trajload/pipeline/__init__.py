"""From train_step to Batch: plan, read, decode, in order, ahead of the consumer.

build.py      what a batch is made of, row by row; run plainly it is the oracle
prefetch.py   the same work by threads, ahead of the consumer, delivered in order
workers.py    who makes the batches: threads, worker processes (process_pool.py and what it names), or what `auto` measured
quarantine.py what happens to a window that cannot be read
state.py      the checkpointable state, and the error that names what does not fit
stats.py      where the time went, by thread (stats_meter.py) and, of decoding, by stream and episode (stats_costs.py)
"""
