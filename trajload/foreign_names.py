"""What arguments of other loaders are called here: torch, LeRobot, RLDS, WebDataset, trainers; and arguments in the wrong call."""

from __future__ import annotations

from typing import Final

__all__ = ["hint_for"]

_WINDOW = "window=tl.Window(num_steps=...) says which steps an example has"
_RANKS = "ranks come from the environment (torchrun sets it), or from rank=, world_size= or device_mesh= of Loader"
_EPOCHS = "num_epochs of Loader; without it a run does not end"
_PIXELS = 'streams={"name of the camera": tl.Image(size=(height, width))}'
_LOADER_ONLY = "it is an argument of tl.Loader, which decides it"
_TORCH_WORKERS = (
    "decoder threads are num_workers=, worker processes workers='processes:N'; what is meant for torch's own workers goes to "
    "loader.as_dataloader()"
)

_LOADER: Final[dict[str, str]] = {
    "batch_size micro_batch_size per_device_train_batch_size per_device_batch_size device_batch_size": (
        "global_batch_size is the number of windows over all ranks, each of which gets its part"
    ),
    "shuffle shuffle_files shuffle_buffer shuffle_buffer_size buffer_size shardshuffle shuffle_algo shuffle_block_size": (
        "order='shuffled', the default, is a full shuffle without a buffer; order='sequential' is none"
    ),
    "shuffle_seed random_seed generator rng": "seed= decides every order and every draw",
    "epochs max_epochs n_epochs repeat repeats": f"use {_EPOCHS}",
    "sampler batch_sampler weights sample_weights": (
        "order= decides which windows come when; tl.Weighted(episode_weights=...) draws by weight, tl.Mixture several datasets"
    ),
    "collate_fn": "none is needed, a batch is (B, T, ...) tensors with masks; transforms=[...] see single windows",
    "transform image_transforms image_transform augment augmentations augmentation": (
        "transforms=[...] are callables (window, generator) -> window, such as tl.RandomCrop(...)"
    ),
    "sequence_length seq_len seq_length sequence_len window_size num_frames n_frames frames_per_clip clip_len clip_length horizon "
    "n_steps num_step": _WINDOW,
    "num_steps stride dilation pad history frameskip frame_skip frame_interval frame_step": (
        f"{_WINDOW}; stride, dilation (steps between its steps), pad and history are arguments of tl.Window, too"
    ),
    "delta_timestamps delta_indices delta_tolerance_s": "it is an argument of tl.Window: window=tl.Window({name}=...)",
    "chunk_size action_horizon action_chunk_size n_action_steps n_obs_steps observation_horizon obs_horizon": (
        "window=tl.Window(delta_indices={'action': range(16)}) gives a stream steps of its own"
    ),
    "size image_size img_size resize resolution image_shape height width": f"pictures are resized by {_PIXELS}",
    "keys columns modalities modality cameras camera_names image_keys features stream obs_keys": (
        "streams=[...] names what a batch holds"
    ),
    "align tolerance_s on_miss on_missing": (
        "it is asked for by stream: streams={'imu': tl.Signal({name}=...)}, or tl.Image(...) for pictures"
    ),
    "root repo_id path data_dir dataset_path data_path dataset_name urls url": (
        "the dataset comes first: tl.Loader(dataset, ...), a folder or what tl.open returned"
    ),
    "cache_dir missing name": "it is an argument of tl.open: tl.Loader(tl.open(folder, {name}=...), ...)",
    "split": "episodes=tl.split(dataset, {'train': 0.9, 'val': 0.1})['train'] takes a part",
    "episode_indices episode_ids": "episodes= takes numbers of episodes, or a function of EpisodeInfo -> bool",
    "pin_memory pin_memory_device": "device='cuda' copies batches ahead from pinned memory",
    "prefetch_factor prefetch_batches num_prefetch buffer": "prefetch= is the number of train_steps in the works, 'auto' by default",
    "persistent_workers worker_init_fn multiprocessing_context": _TORCH_WORKERS,
    "num_processes n_workers num_threads n_jobs num_decoder_threads threads": (
        "decoder threads are num_workers=, worker processes workers='processes:N'"
    ),
    "timeout": "worker_timeout_s= bounds how long worker processes or threads may make no progress",
    "video_backend backend decoder": "decode= is 'cpu', 'cuda' or 'auto'",
    "drop_remainder dataloader_drop_last": "drop_last= goes with num_epochs=; a run without end has no short batch",
    "handler on_transform_error skip_errors strict": "on_error= is 'raise' or 'substitute'",
    "num_replicas num_shards nodesplitter distributed shard_id local_rank global_rank": _RANKS,
    "start_step initial_step start_epoch": "loader.seek(train_step) moves the cursor, load_state_dict continues a run",
    "dtype return_uint8": "pictures are uint8 and signals as stored; convert batches, or use tl.Normalizer among the transforms",
    "layout": "pictures are (B, T, C, H, W)",
}

_TABLE: Final[dict[str, dict[str, str]]] = {
    "Loader": _LOADER,
    "Window": {
        "sequence_length seq_len seq_length window_size size num_frames n_frames frames_per_clip length clip_len clip_length "
        "horizon steps T": "num_steps= is the number of steps in a window",
        "frameskip frame_skip frame_interval frame_step step_between_frames skip": (
            "dilation= is the spacing of steps inside a window, stride= the distance between starts of neighbouring windows"
        ),
        "step_between_clips hop hop_size shift": "stride= is the distance between starts of neighbouring windows",
        "action_horizon chunk_size action_chunk_size n_action_steps n_obs_steps obs_horizon observation_delta_indices "
        "action_delta_indices": "delta_indices={'action': range(16)} gives a stream steps of its own",
        "pad_before pad_after padding pad_mode padding_mode": (
            "pad='edge' or 'zero' lets windows reach beyond the episode's ends, history= counts steps before the anchor"
        ),
        "tolerance_s": "delta_tolerance_s= is for delta_timestamps; of a clocked stream it is tl.Signal(tolerance_s=...)",
        "align": "it is asked for by stream: Loader(streams={'imu': tl.Signal(align=...)})",
        "streams": "streams are named in Loader(streams=...), steps of a stream's own in delta_indices={'name': [...]}",
        "drop_last": _LOADER_ONLY,
    },
    "Image": {
        "resize shape resolution image_size height width": "size=(height, width)",
        "interpolation antialias": "colour is resized with an antialiased filter, depth by nearest neighbour",
        "crop": "crops are transforms: tl.RandomCrop(...)",
        "mean std normalize": "pictures are uint8; tl.Normalizer(...) among the transforms scales them",
    },
    "Mixture": {
        "weights proportions probabilities sample_weights": "weights stand with their source: {'a': (dataset, 0.7), ...}",
        "datasets": "sources= is name -> (dataset, weight)",
        "seed batch_size global_batch_size window streams transforms order": _LOADER_ONLY,
        "stopping_strategy": "sources go on with their next epoch; there is no end to stop at",
    },
    "Source": {
        "weights proportion proportions": "weight= is the share of this source",
        "seed global_batch_size batch_size": _LOADER_ONLY,
    },
    "open": {
        "root repo_id path folder data_dir uri url": "the path comes first, without a name: tl.open(folder)",
        "revision download force_cache_sync streaming": "nothing is downloaded: tl.open(folder) reads what is there",
        "episodes delta_timestamps image_transforms transform tolerance_s window streams split batch_size": (
            "it says how data are loaded, which tl.Loader decides; see Loader(window=, streams=, episodes=, transforms=)"
        ),
        "video_backend": "Loader(decode=...) says who decodes video",
        "cache cache_path": "cache_dir= is where packet tables are kept",
    },
    "Writer": {
        "fps rate rate_hz frequency hz frame_rate": "step_rate_hz= is the rate of the step clock",
        "features schema columns spec specs": "streams= is a list of tl.StreamSpec(...)",
        "root dir folder out output repo_id": "the folder comes first: tl.Writer(folder, streams=[...])",
        "maxsize size_limit shard_size max_shard_bytes": "shard_bytes= bounds a shard",
        "maxcount": "shards are bounded by shard_bytes=",
        "vcodec codec crf video_codec": "video={'name of the stream': VideoEncode(codec=..., crf=...)}",
        "overwrite exist_ok mode": "append=True adds to a dataset; otherwise the folder must hold none",
        "metadata": "provenance= is a JSON object",
    },
    "Writer.add_episode": {
        "data frames observations steps episode": "values come first: add_episode({'stream': values, ...})",
        "timestamps times": "step_times_ns= are times of the steps, timestamps_ns={'stream': ...} those of a clocked stream",
        "done dones": "terminated=True says that the last step ended the task",
        "name id episode_id episode_index": "key= names the episode",
    },
    "StreamSpec": {
        "fps frequency rate hz": "rate_hz= is the nominal rate",
        "kind type": "modality= is what it means, encoding= how it is stored",
        "unit": "units=",
    },
    "Checkpointer": {
        "dirpath dir directory path folder root save_dir": "the store comes first: tl.Checkpointer(folder, state, ...)",
        "every_n_train_steps save_interval save_every save_steps interval every_steps": "every=tl.Every(steps=...)",
        "save_top_k max_to_keep keep_last save_total_limit keep_n": "keep=tl.Keep(last=...)",
        "model optimizer optim loader components": "all that is saved stands in one dict: {'model': model, 'loader': loader}",
        "is_async async_save asynchronous": "mode='async', 'sync' or 'auto'",
        "process_group pg": "group= is the process group",
        "timeout": "timeout_s= is in seconds",
    },
    "Every": {
        "n_steps step train_steps every_n_train_steps interval": "steps=",
        "minutes hours time": "seconds=",
        "epoch every_n_epochs": "epochs=",
    },
    "Keep": {"n num save_top_k max_to_keep keep_last newest": "last= is how many of the newest stay"},
    "Loader.batch_at": {"step index idx global_step": "the train_step comes first: batch_at(1000)"},
    "Loader.seek": {"step index global_step epoch": "the train_step comes first: seek(1000)"},
    "as_dataloader": {
        "global_batch_size seed order transforms streams window rank world_size on_error": _LOADER_ONLY,
        "epochs num_epochs": "num_epochs of Loader bounds the run; steps_per_epoch= is the length of a pass",
        "length num_samples num_batches limit_train_batches": "steps_per_epoch= is the length of a pass",
        "workers": "num_workers= are processes of torch; workers= is an argument of tl.Loader",
        "prefetch": "prefetch_factor= is torch's; prefetch= is an argument of tl.Loader",
        "device": "device= is an argument of tl.Loader",
    },
    "World": {
        "size num_ranks num_replicas": "world_size=",
        "local_rank": "rank= is that of all processes, not of the machine",
    },
}


def hint_for(call: str, name: str) -> str:
    """Return what an argument that `call` does not have is called there, as the end of a sentence; '' if that is not known.

    Args:
        call: Name of a class, function, or 'Class.method'.
        name: The argument.

    Example:
        >>> hint_for("Every", "minutes")
        'seconds=.'
    """
    for names, hint in _TABLE.get(call, {}).items():
        if name in names.split():
            return f"{hint.replace('{name}', name)}."
    return ""
