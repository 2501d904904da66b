"""Small trainings by the real Opacus."""

import pytest

# Opacus' hooks on a model whose inputs need no gradients.
trains = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


def engine_of(opacus, accountant="last_iterate"):
    with pytest.warns(UserWarning, match="Secure RNG turned off"):
        return opacus.PrivacyEngine(accountant=accountant)


def model_and_optimizer(optimizer="SGD", **options):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10)
    return model, getattr(torch.optim, optimizer)(model.parameters(), **({"lr": 0.5} | options))


def make_private(engine, data, model, optimizer, batch_size=160, loader=None, **options):
    import torch

    loader = loader or torch.utils.data.DataLoader(data, batch_size=batch_size)
    method = engine.make_private_with_epsilon if "target_epsilon" in options else engine.make_private
    return method(module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=0.7, **options)


def train(model, optimizer, loader, steps):
    import torch

    done, losses = 0, []
    while done < steps:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            done += 1
            if done == steps:
                break
    return losses
