"""Names that other libraries have for options of `fit`: a wrong option is told of the right one."""

from __future__ import annotations

_OPTIONS: dict[str, tuple[str, ...]] = {
    "model.lr": ("learning_rate",),
    "model.optimizer": ("optim",),
    "model.schedule": ("lr_scheduler", "lr_scheduler_type"),
    "model.recompute": ("gradient_checkpointing",),
    "model.pretrained": ("model_name", "model_name_or_path", "pretrained_model_name_or_path"),
    "model.d_model": ("d_model", "hidden_size", "n_embd"),
    "model.d_ff": ("intermediate_size",),
    "model.num_heads": ("num_heads", "num_attention_heads", "n_head"),
    "model.num_layers": ("num_hidden_layers", "n_layer"),
    "data.train": ("train", "train_file"),
    "data.valid": ("valid", "validation", "validation_file"),
    "data.test": ("test", "test_file"),
    "data.batch_size": ("batch_size", "train_batch_size", "per_device_train_batch_size"),
    "data.max_length": ("max_length", "max_seq_length"),
    "data.text_column": ("text_column", "text_column_name"),
    "data.label_column": ("label_column", "label_column_name"),
    "trainer.max_epochs": ("epochs", "num_epochs", "num_train_epochs"),
    "trainer.accumulate_grad_batches": ("gradient_accumulation_steps",),
    "trainer.gradient_clip_val": ("max_grad_norm",),
    "trainer.log_every_n_steps": ("logging_steps",),
    "trainer.val_check_interval": ("eval_steps",),
    "trainer.devices": ("gpus",),
    "trainer.precision 16-mixed": ("fp16",),
    "trainer.precision bf16-mixed": ("bf16",),
    "patience": ("early_stopping_patience",),
    "resume": ("ckpt_path", "resume_from_checkpoint"),
    "runs": ("output_dir", "default_root_dir"),
    "wandb": ("report_to",),
}
"""Our option, and what Lightning, transformers or a user without our groups call it."""

_OURS = {other: option for option, others in _OPTIONS.items() for other in others}


def our_option(name: str) -> str | None:
    """Find the option that is meant by a name of another library; None if there is none.

    Args:
        name: Name as it was given, with or without a group, such as "trainer.gpus".
    """
    return _OURS.get(name.rpartition(".")[2])
